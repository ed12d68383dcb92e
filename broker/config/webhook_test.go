package config

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func secretOf(bytes int) string {
	return WebhookSecretPrefix + base64.StdEncoding.EncodeToString(make([]byte, bytes))
}

// Secrets are read where the configuration says they are, and what is wrong
// with one names the field and never shows it.
func TestWebhookSecrets(t *testing.T) {
	const field = "producers.p.webhook.secret_env"
	for name, c := range map[string]struct {
		value string
		want  int // secrets; 0: an error
	}{
		"none":         {"", 0},
		"one":          {secretOf(24), 1},
		"the longest":  {secretOf(64), 1},
		"too short":    {secretOf(23), 0},
		"too long":     {secretOf(65), 0},
		"no prefix":    {strings.TrimPrefix(secretOf(32), WebhookSecretPrefix), 0},
		"not base64":   {WebhookSecretPrefix + "hunter2!", 0},
		"several":      {secretOf(24) + "\n" + secretOf(32) + " " + secretOf(48) + "\n", 3},
		"too many":     {strings.Repeat(secretOf(24)+" ", MaxWebhookSecrets+1), 0},
		"one is wrong": {secretOf(24) + " hunter2", 0},
	} {
		t.Setenv("HOOK_SECRET", c.value)
		w := Webhook{SecretEnv: "HOOK_SECRET"}
		got, err := w.Secrets("producers.p.webhook")
		if len(got) != c.want || (err != nil) != (c.want == 0) {
			t.Errorf("%s: %d secrets, %v", name, len(got), err)
		}
		if err != nil && (fieldOf(err) != field || strings.Contains(err.Error(), "hunter2")) {
			t.Errorf("%s: %v", name, err)
		}
		file := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(file, []byte(c.value), 0o600); err != nil {
			t.Fatal(err)
		}
		w = Webhook{SecretFile: file}
		got, err = w.Secrets("producers.p.webhook")
		if len(got) != c.want || (err != nil && fieldOf(err) != "producers.p.webhook.secret_file") {
			t.Errorf("%s in a file: %d secrets, %v", name, len(got), err)
		}
	}
	if _, err := (&Webhook{SecretFile: "/no/such/file"}).Secrets("w"); fieldOf(err) != "w.secret_file" {
		t.Errorf("no file: %v", err)
	}
}

func TestWebhook(t *testing.T) {
	c, err := Parse([]byte(`producers: {nightly: {webhook: {url: "http://10.0.0.1:9/x", secret_file: s, allow_private: true}}, other: {}}`))
	if err != nil {
		t.Fatal(err)
	}
	if !c.Told("nightly") || c.Told("other") || c.Told("nobody") {
		t.Error("Told")
	}
	if without := Default(); without.Complete() != nil || without.Fingerprint() == c.Fingerprint() {
		t.Error("a webhook is no part of the fingerprint")
	}
}
