package config

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"

	"leeway/broker"
	"leeway/slackgate"
)

// Protocols are the wires a backend may speak.
var Protocols = []string{"openai", "anthropic", "ollama"}

var (
	// name is what classes, backends and prefixes may be called: they become
	// label values and parts of keys.
	name = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)
	// currency is what a currency may be called: it becomes a label value.
	currency = regexp.MustCompile(`^[A-Za-z0-9]{1,16}$`)
	// sha256Hex is a SHA-256 in hex.
	sha256Hex = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// Complete fills what was left out and validates the whole. Errors name the
// field by its path in the file.
func (c *Config) Complete() error {
	if len(c.Classes) == 0 {
		c.Classes = Classes{c.DefaultClass: {}}
	}
	steps := []func() error{c.completeTop, c.completePools, c.completeClasses, c.checkOptions, c.checkAccess, c.checkLab, c.completeProducers, c.checkShards}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) completeTop() error {
	// A line is held twice, as it came and as it was read.
	line := 2 * c.Limits.LineBytes()
	orDefault(&c.Limits.InFlightBytes, max(64<<20, 8*line))
	_, badURL := url.Parse(c.Redis.URL)
	cut := c.Gate.FreeQueueAgeCutMS
	return cmp.Or(
		address("listen", c.Listen),
		address("metrics_listen", c.MetricsListen),
		address("worker_metrics_listen", c.WorkerMetricsListen),
		checkf(badURL == nil, "redis.url", "not a URL"), // the URL may hold a password
		named("redis.prefix", c.Redis.Prefix),
		within("redis.timeout_ms", c.Redis.TimeoutMS, 10, 10_000),
		checkf(cut == nil || *cut >= 0, "gate.free_queue_age_cut_ms", "must be at least 0"),
		within("gate.reserve_ms", c.Gate.ReserveMS, 0, MaxDeadlineMS),
		within("worker.poll_ms", c.Worker.PollMS, 1, 1000),
		within("worker.lease_ms", c.Worker.LeaseMS, 500, 60_000),
		within("worker.heartbeat_ms", c.Worker.HeartbeatMS, 100, 10_000),
		within("worker.shutdown_grace_ms", c.Worker.ShutdownGraceMS, 0, 24*3600*1000),
		within("limits.text_bytes", c.Limits.TextBytes, 1, MaxTextBytesHard),
		within("limits.in_flight_bytes", c.Limits.InFlightBytes, min(4*line, 1<<40), 1<<40),
		within("limits.batch_lines", c.Limits.BatchLines, 1, 10_000_000),
		within("limits.wait_ms", c.Limits.WaitMS, 0, 3600*1000),
		within("keep.result_ms", c.Keep.ResultMS, 1000, 30*24*3600*1000),
		within("keep.ledger_rows", c.Keep.LedgerRows, 1000, 100_000_000),
		within("keep.rollup_ms", c.Keep.RollupMS, 3600*1000, 400*24*3600*1000),
		c.Archive.check(),
	)
}

// check validates where the archive is. An error never shows the URL: it may
// hold a password.
func (a *Archive) check() error {
	u, err := url.Parse(a.URL)
	postgres := err == nil && (u.Scheme == "postgres" || u.Scheme == "postgresql")
	return cmp.Or(
		checkf(a.URL == "" || postgres, "archive.url", "must be a URL that begins with postgres://"),
		within("archive.window_ms", a.WindowMS, 0, 365*24*3600*1000),
		within("archive.batch_rows", a.BatchRows, 1, 50_000),
		within("archive.every_ms", a.EveryMS, 10, 3600*1000),
	)
}

// leaveOut takes a pool for left out that names no backend while the other one
// does. One with a limit of its own was meant to be there.
func (c *Config) leaveOut(path, other slackgate.Path) error {
	p := c.Pool(path)
	if len(p.Backends) > 0 || len(c.Pool(other).Backends) == 0 || p.MeasuredLimit {
		return nil
	}
	if p.Limit == Default().Pool(path).Limit {
		p.Limit = 0
	}
	at := "pools." + path.String()
	return checkf(p.Limit == 0, at+".backends", "is empty, and %s.limit is %d: name backends, or write limit: 0 if there is no such pool", at, p.Limit)
}

func (c *Config) completePools() error {
	if err := cmp.Or(c.leaveOut(slackgate.Paid, slackgate.Free), c.leaveOut(slackgate.Free, slackgate.Paid)); err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, path := range slackgate.Paths {
		if err := c.completePool(path, seen); err != nil {
			return err
		}
	}
	return checkf(c.Pools.Paid.Limit > 0 || c.Pools.Free.Limit > 0, "pools", "both limits are 0: there is nowhere to run a job")
}

func (c *Config) completePool(path slackgate.Path, seen map[string]bool) error {
	p, at := c.Pool(path), "pools."+path.String()
	if err := c.completeMeasured(p, at); err != nil {
		return err
	}
	orDefault(&p.HoldP95MS, p.FirstByteP95MS)
	orDefault(&p.FirstByteShare, 0.6)
	if err := cmp.Or(
		within(at+".limit", p.Limit, 0, MaxSlots),
		within(at+".first_byte_p95_ms", p.FirstByteP95MS, 1, MaxDeadlineMS),
		within("worker."+path.String()+"_slots", c.Slots(path), 0, MaxSlots),
		within(at+".first_byte_cap_ms", p.FirstByteCapMS, 0, MaxDeadlineMS),
		checkf(p.HoldP95MS >= p.FirstByteP95MS, at+".hold_p95_ms",
			"must be at least first_byte_p95_ms (%d): the slot is held past the first byte", p.FirstByteP95MS),
		checkf(p.FirstByteShare > 0 && p.FirstByteShare < 1, at+".first_byte_share", "must be above 0 and below 1"),
		atMost(at+".backends", len(p.Backends), MaxBackends),
	); err != nil {
		return err
	}
	fastEnough := len(p.Backends) == 0
	for i := range p.Backends {
		b := &p.Backends[i]
		if err := b.complete(p, fmt.Sprintf("%s.backends[%d]", at, i), seen); err != nil {
			return err
		}
		fastEnough = fastEnough || b.FirstByteP95MS <= p.FirstByteP95MS
	}
	// The gate promises by the pool's p95, and a backend is called only with
	// its own left: with none as fast, promises would run out uncalled.
	return checkf(fastEnough, at+".first_byte_p95_ms", "%d is less than that of every backend of the pool", p.FirstByteP95MS)
}

func (b *Backend) complete(p *Pool, at string, seen map[string]bool) error {
	orDefault(&b.Protocol, "openai")
	orDefault(&b.FirstByteP95MS, p.FirstByteP95MS)
	orDefault(&b.StallMS, 10_000)
	if p.MeasuredLimit && b.Knee != nil {
		orDefault(&b.Limit, b.Knee.Limit)
	}
	orDefault(&b.Limit, max(p.Limit, 1))
	twice := seen[b.Name]
	seen[b.Name] = true
	u, web := webURL(b.URL)
	return cmp.Or(
		named(at+".name", b.Name),
		checkf(!twice, at+".name", "%q is used twice", b.Name),
		oneOf(at+".protocol", b.Protocol, Protocols...),
		checkf(web, at+".url", "must be an http or https URL"),
		checkf(u.User == nil, at+".url", "must not hold credentials: use key_env or key_file"),
		checkf(u.RawQuery == "" && u.Fragment == "", at+".url", "must not have a query or a fragment: use options.query"),
		checkf(b.Model != "", at+".model", "is missing"),
		checkf(b.KeyEnv == "" || b.KeyFile == "", at+".key_env", "set key_env or key_file, not both"),
		b.Knee.complete(at+".knee"),
		b.completePrices(at),
		within(at+".first_byte_p95_ms", b.FirstByteP95MS, 1, MaxDeadlineMS),
		within(at+".stall_ms", b.StallMS, 100, 600_000),
		within(at+".limit", b.Limit, 1, MaxSlots),
		checkKeyHeader(at+".key_header", b),
		checkHeaders(at+".headers", b.Headers),
		b.Options.complete(at+".options", b.Protocol),
	)
}

// keyHeaders hold keys; ownHeaders are set by the client or belong to the
// connection.
var (
	keyHeaders = []string{"authorization", "proxy-authorization", "api-key", "x-api-key", "x-goog-api-key", "cookie"}
	ownHeaders = []string{
		"host", "content-length", "content-type", "content-encoding", "accept", "accept-encoding", "x-request-id", "idempotency-key", "expect",
		"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", // of one hop
	}
)

func checkKeyHeader(at string, b *Backend) error {
	h := strings.ToLower(b.KeyHeader)
	return cmp.Or(
		checkf(h == "" || httpguts.ValidHeaderFieldName(h), at, "%.64q cannot be a header's name", h),
		checkf(!slices.Contains(ownHeaders, h), at, "%q is set by Leeway itself", h),
		checkf(h == "" || b.KeyEnv != "" || b.KeyFile != "", at, "is of no use without key_env or key_file"),
		checkf(!slices.ContainsFunc(slices.Collect(maps.Keys(b.Headers)), func(n string) bool { return strings.EqualFold(n, h) }), at,
			"%q is among the headers too", b.KeyHeader),
	)
}

// checkHeaders refuses what cannot be sent as headers. An error never shows a
// value: it may be a secret.
func checkHeaders(at string, headers map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		value, lower := headers[name], strings.ToLower(name)
		if err := cmp.Or(
			checkf(!slices.Contains(keyHeaders, lower), at+"."+name, "holds a key: use key_env or key_file, and key_header"),
			checkf(!slices.Contains(ownHeaders, lower), at+"."+name, "is set by Leeway itself"),
			checkf(httpguts.ValidHeaderFieldName(name), at, "%.64q cannot be a header's name", name),
			checkf(httpguts.ValidHeaderFieldValue(value), at+"."+name, "cannot be sent: it has a line break or another control character"),
		); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) completeClasses() error {
	if err := atMost("classes", len(c.Classes), MaxClasses); err != nil {
		return err
	}
	for n, cl := range c.Classes {
		if err := cmp.Or(named("classes", n), cl.complete("classes."+n)); err != nil {
			return err
		}
		c.Classes[n] = cl
	}
	_, ok := c.Classes[c.DefaultClass]
	return checkf(ok, "default_class", "%q is not among the classes", c.DefaultClass)
}

func (c *Class) complete(at string) error {
	orDefault(&c.DeadlineMS, 15_000)
	orDefault(&c.MaxDeadlineMS, 24*3600*1000)
	orDefault(&c.MaxOutputTokens, 400)
	orDefault(&c.Prefer, PaidFirst)
	orDefault(&c.Success, SuccessWhole)
	orDefault(&c.Relay, RelayLive)
	orDefault(&c.Prompt, DefaultPrompt)
	orDefault(&c.WordLimit, 200)
	if c.ReserveMS == nil {
		c.ReserveMS = new(int64(2000))
	}
	prompt, err := c.SystemPrompt()
	c.promptBytes = int64(len(prompt))
	return cmp.Or(
		oneOf(at+".prefer", c.Prefer, PaidFirst, FreeFirst, PaidOnly, FreeOnly),
		oneOf(at+".success", c.Success, SuccessWhole, SuccessFirstByte),
		oneOf(at+".relay", c.Relay, RelayLive, RelayWhole),
		within(at+".max_deadline_ms", c.MaxDeadlineMS, 1, MaxDeadlineMS),
		within(at+".deadline_ms", c.DeadlineMS, 1, c.MaxDeadlineMS),
		within(at+".reserve_ms", *c.ReserveMS, 0, MaxDeadlineMS),
		within(at+".word_limit", c.WordLimit, 1, 100_000),
		within(at+".max_output_tokens", c.MaxOutputTokens, 1, 1_000_000),
		checkBudget(at, c.BudgetMicroPerDay),
		checkf(err == nil, at+".prompt", "%v", err),
	)
}

func (c *Config) checkAccess() error {
	seen := map[string]bool{}
	keys := func(list string, keys []Key) error {
		for i, k := range keys {
			at := fmt.Sprintf("access.%s[%d]", list, i)
			if err := cmp.Or(
				named(at+".name", k.Name),
				checkf(sha256Hex.MatchString(k.KeySHA256), at+".key_sha256", "must be 64 hex digits: the key's SHA-256, not the key"),
				checkf(!seen[k.KeySHA256], at+".key_sha256", "is used twice"),
			); err != nil {
				return err
			}
			seen[k.KeySHA256] = true
		}
		return nil
	}
	return cmp.Or(
		keys("producers", c.Access.Producers),
		keys("oncall", c.Access.OnCall),
		checkf(c.Access.Keyed() || c.Access.Open || Loopback(c.Listen), "listen",
			"%q is reachable from other machines, and no keys are configured: "+
				"set access.producers and access.oncall, or access.open on a closed network", c.Listen),
	)
}

// checkLab refuses a lab's switches to a configuration that could reach
// anything else than a lab.
func (c *Config) checkLab() error {
	if !c.Lab.RecheckOff {
		return nil
	}
	for at, b := range c.backends() {
		u, _ := webURL(b.URL)
		if err := cmp.Or(
			checkf(LoopbackHost(u.Hostname()), "lab.recheck_off", "is for lab backends only, and %s.url is not on loopback", at),
			checkf(b.KeyEnv == "" && b.KeyFile == "", "lab.recheck_off", "is for lab backends only, and %s has a key", at),
		); err != nil {
			return err
		}
	}
	return nil
}

func orDefault[T comparable](v *T, def T) { *v = cmp.Or(*v, def) }

// The checks below return an error that names the field, or nil. [cmp.Or] is
// the first error of several.

func checkf(ok bool, field, format string, args ...any) error {
	if ok {
		return nil
	}
	return broker.Fieldf(field, format, args...)
}

func within[T int | int64 | float64](field string, v, lo, hi T) error {
	return checkf(v >= lo && v <= hi, field, "%v is outside %v..%v", v, lo, hi) // false for NaN
}

func atMost(field string, n, most int) error {
	return checkf(n <= most, field, "more than %d", most)
}

func oneOf[T ~string](field string, v T, all ...T) error {
	return checkf(slices.Contains(all, v), field, "%q is not one of %v", v, all)
}

func named(field, n string) error {
	return checkf(name.MatchString(n), field, "%.64q: use a-z, 0-9, '.', '_' and '-'", n)
}

func address(field, addr string) error {
	_, _, err := net.SplitHostPort(addr)
	return checkf(err == nil, field, "%q is not host:port", addr)
}

// webURL parses an http or https URL with a host. It returns an empty URL where
// there is none.
func webURL(s string) (u *url.URL, ok bool) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return &url.URL{}, false
	}
	return u, true
}
