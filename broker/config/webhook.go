package config

import (
	"cmp"
	"encoding/base64"
	"strings"

	"leeway/broker"
)

// Webhook is where the ends of a producer's jobs are told.
type Webhook struct {
	// URL is https, or http where AllowPrivate is set. Required.
	URL string `yaml:"url"`
	// SecretEnv and SecretFile name where the signing secrets are; the secrets
	// themselves never stand in the configuration. One of them is required.
	SecretEnv  string `yaml:"secret_env"`
	SecretFile string `yaml:"secret_file"`
	// AllowPrivate lets the target be on this machine or in a private network.
	// Defaults to false.
	AllowPrivate bool `yaml:"allow_private"`
}

// A signing secret is whsec_ and the base64 of that many bytes, as the
// Standard Webhooks specification has it.
const (
	WebhookSecretPrefix = "whsec_"
	MinWebhookSecret    = 24
	MaxWebhookSecret    = 64
	// MaxWebhookSecrets is how many may sign at once, while one takes the
	// place of another.
	MaxWebhookSecrets = 4
)

func (w *Webhook) check(at string) error {
	if w == nil {
		return nil
	}
	u, web := webURL(w.URL)
	return cmp.Or(
		checkf(web && u.Hostname() != "", at+".url", "must be an https URL"), // it may hold a token: it is not quoted
		checkf(u.User == nil, at+".url", "must not hold credentials: the signature is what the receiver checks"),
		checkf(u.Fragment == "", at+".url", "must not have a fragment"),
		checkf(u.Scheme == "https" || w.AllowPrivate, at+".url", "must be https: http is for private networks, with allow_private"),
		checkf((w.SecretEnv == "") != (w.SecretFile == ""), at+".secret_env", "set secret_env or secret_file, one of them"),
	)
}

// Secrets reads the signing secrets from where the configuration says they
// are: one, or several with blanks or line ends between them, the newest
// first. at names the webhook in errors. They must never be logged.
func (w *Webhook) Secrets(at string) ([]string, error) {
	field, raw, err := readSecret(at+".secret", w.SecretEnv, w.SecretFile)
	if err != nil {
		return nil, err
	}
	secrets := strings.Fields(raw)
	if len(secrets) == 0 || len(secrets) > MaxWebhookSecrets {
		return nil, broker.Fieldf(field, "holds %d secrets: want 1..%d", len(secrets), MaxWebhookSecrets)
	}
	for _, s := range secrets {
		rest, prefixed := strings.CutPrefix(s, WebhookSecretPrefix)
		key, err := base64.StdEncoding.DecodeString(rest)
		if !prefixed || err != nil || len(key) < MinWebhookSecret || len(key) > MaxWebhookSecret {
			return nil, broker.Fieldf(field, "a secret is %s and the base64 of %d to %d random bytes", WebhookSecretPrefix, MinWebhookSecret, MaxWebhookSecret)
		}
	}
	return secrets, nil
}

// Told reports whether the ends of a producer's jobs are told by a webhook.
func (c *Config) Told(producer string) bool { return c.Producers[producer].Webhook != nil }
