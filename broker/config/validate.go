package config

import (
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"

	"leeway/broker"
	"leeway/slackgate"
)

// Protocols are the wires a backend may speak.
var Protocols = []string{"openai", "anthropic", "ollama"}

// name is what classes, backends and prefixes may be called: they become label
// values and parts of keys.
var name = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// currency is what a currency may be called: it becomes a label value.
var currency = regexp.MustCompile(`^[A-Za-z0-9]{1,16}$`)

// Complete fills what was left out and validates the whole. Errors name the
// field by its path in the file.
func (c *Config) Complete() error {
	if len(c.Classes) == 0 {
		c.Classes = Classes{c.DefaultClass: {}}
	}
	steps := []func() error{c.completeTop, c.completePools, c.completeClasses, c.completeAccess, c.completeLab, c.completeProducers, c.completeShards}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) completeTop() error {
	for field, addr := range map[string]string{
		"listen": c.Listen, "metrics_listen": c.MetricsListen, "worker_metrics_listen": c.WorkerMetricsListen,
	} {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return broker.Fieldf(field, "%q is not host:port", addr)
		}
	}
	if _, err := url.Parse(c.Redis.URL); err != nil {
		return broker.Fieldf("redis.url", "not a URL") // the URL may hold a password
	}
	if !name.MatchString(c.Redis.Prefix) {
		return broker.Fieldf("redis.prefix", "%q: use a-z, 0-9, '.', '_' and '-'", c.Redis.Prefix)
	}
	if cut := c.Gate.FreeQueueAgeCutMS; cut != nil && *cut < 0 {
		return broker.Fieldf("gate.free_queue_age_cut_ms", "must be at least 0")
	}
	// A line is held twice, as it came and as it was read.
	line := 2 * c.Limits.LineBytes()
	orDefault(&c.Limits.InFlightBytes, max(64<<20, 8*line))
	return firstError(
		within("redis.timeout_ms", c.Redis.TimeoutMS, 10, 10_000),
		within("gate.reserve_ms", c.Gate.ReserveMS, 0, MaxDeadlineMS),
		within("worker.poll_ms", c.Worker.PollMS, 1, 1000),
		within("worker.lease_ms", c.Worker.LeaseMS, 500, 60_000),
		within("worker.heartbeat_ms", c.Worker.HeartbeatMS, 100, 10_000),
		within("worker.shutdown_grace_ms", c.Worker.ShutdownGraceMS, 0, 24*3600*1000),
		within("limits.text_bytes", c.Limits.TextBytes, 1, MaxTextBytesHard),
		within("limits.in_flight_bytes", c.Limits.InFlightBytes, min(2*line, 1<<40), 1<<40),
		within("limits.batch_lines", int64(c.Limits.BatchLines), 1, 10_000_000),
		within("limits.wait_ms", c.Limits.WaitMS, 0, 3600*1000),
		within("keep.result_ms", c.Keep.ResultMS, 1000, 30*24*3600*1000),
		within("keep.ledger_rows", c.Keep.LedgerRows, 1000, 100_000_000),
		within("keep.rollup_ms", c.Keep.RollupMS, 3600*1000, 400*24*3600*1000),
		c.Archive.complete(),
	)
}

func (c *Config) completePools() error {
	seen := map[string]bool{}
	for _, path := range slackgate.Paths {
		p, at := c.Pool(path), "pools."+path.String()
		if err := c.completeMeasured(p, at); err != nil {
			return err
		}
		if err := firstError(
			within(at+".limit", int64(p.Limit), 0, MaxSlots),
			within(at+".first_byte_p95_ms", p.FirstByteP95MS, 1, MaxDeadlineMS),
			within("worker."+path.String()+"_slots", int64(c.Slots(path)), 0, MaxSlots),
			within(at+".first_byte_cap_ms", p.FirstByteCapMS, 0, MaxDeadlineMS),
		); err != nil {
			return err
		}
		if p.HoldP95MS == 0 {
			p.HoldP95MS = p.FirstByteP95MS
		}
		if p.HoldP95MS < p.FirstByteP95MS {
			return broker.Fieldf(at+".hold_p95_ms", "must be at least first_byte_p95_ms (%d): the slot is held past the first byte", p.FirstByteP95MS)
		}
		if p.FirstByteShare == 0 {
			p.FirstByteShare = 0.6
		}
		if !(p.FirstByteShare > 0 && p.FirstByteShare < 1) {
			return broker.Fieldf(at+".first_byte_share", "must be above 0 and below 1")
		}
		if len(p.Backends) > MaxBackends {
			return broker.Fieldf(at+".backends", "more than %d", MaxBackends)
		}
		for i := range p.Backends {
			if err := p.Backends[i].complete(p, fmt.Sprintf("%s.backends[%d]", at, i), seen); err != nil {
				return err
			}
		}
		// The gate promises by the pool's p95, and a backend is called only
		// with its own left: with none as fast, promises would run out uncalled.
		if len(p.Backends) > 0 && !slices.ContainsFunc(p.Backends, func(b Backend) bool { return b.FirstByteP95MS <= p.FirstByteP95MS }) {
			return broker.Fieldf(at+".first_byte_p95_ms", "%d is less than that of every backend of the pool", p.FirstByteP95MS)
		}
	}
	if c.Pools.Paid.Limit == 0 && c.Pools.Free.Limit == 0 {
		return broker.Fieldf("pools", "both limits are 0: there is nowhere to run a job")
	}
	return nil
}

func (b *Backend) complete(p *Pool, at string, seen map[string]bool) error {
	if !name.MatchString(b.Name) {
		return broker.Fieldf(at+".name", "%q: use a-z, 0-9, '.', '_' and '-'", b.Name)
	}
	if seen[b.Name] {
		return broker.Fieldf(at+".name", "%q is used twice", b.Name)
	}
	seen[b.Name] = true
	if b.Protocol == "" {
		b.Protocol = "openai"
	}
	if !slices.Contains(Protocols, b.Protocol) {
		return broker.Fieldf(at+".protocol", "%q is not one of %v", b.Protocol, Protocols)
	}
	u, err := url.Parse(b.URL)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return broker.Fieldf(at+".url", "must be an http or https URL")
	}
	if u.User != nil {
		return broker.Fieldf(at+".url", "must not hold credentials: use key_env or key_file")
	}
	if b.Model == "" {
		return broker.Fieldf(at+".model", "is missing")
	}
	if b.KeyEnv != "" && b.KeyFile != "" {
		return broker.Fieldf(at+".key_env", "set key_env or key_file, not both")
	}
	if b.FirstByteP95MS == 0 {
		b.FirstByteP95MS = p.FirstByteP95MS
	}
	if err := b.Knee.complete(at + ".knee"); err != nil {
		return err
	}
	if b.StallMS == 0 {
		b.StallMS = 10_000
	}
	if b.Limit == 0 && p.MeasuredLimit && b.Knee != nil {
		b.Limit = b.Knee.Limit
	}
	if b.Limit == 0 {
		b.Limit = max(p.Limit, 1)
	}
	if err := b.completePrices(at); err != nil {
		return err
	}
	return firstError(
		within(at+".first_byte_p95_ms", b.FirstByteP95MS, 1, MaxDeadlineMS),
		within(at+".stall_ms", b.StallMS, 100, 600_000),
		within(at+".limit", int64(b.Limit), 1, MaxSlots),
	)
}

func (c *Config) completeClasses() error {
	if len(c.Classes) > MaxClasses {
		return broker.Fieldf("classes", "more than %d", MaxClasses)
	}
	for n, cl := range c.Classes {
		at := "classes." + n
		if !name.MatchString(n) {
			return broker.Fieldf("classes", "%q: use a-z, 0-9, '.', '_' and '-'", n)
		}
		orDefault(&cl.DeadlineMS, 15_000)
		orDefault(&cl.MaxDeadlineMS, 24*3600*1000)
		orDefault(&cl.MaxOutputTokens, 400)
		orDefault(&cl.Prefer, PaidFirst)
		orDefault(&cl.Success, SuccessWhole)
		orDefault(&cl.Prompt, DefaultPrompt)
		orDefault(&cl.WordLimit, 200)
		if cl.ReserveMS == nil {
			cl.ReserveMS = new(int64(2000))
		}
		if _, ok := cl.Prefer.Paths(); !ok {
			return broker.Fieldf(at+".prefer", "%q is not one of %q, %q, %q, %q", cl.Prefer, PaidFirst, FreeFirst, PaidOnly, FreeOnly)
		}
		if cl.Success != SuccessWhole && cl.Success != SuccessFirstByte {
			return broker.Fieldf(at+".success", "%q is not %q or %q", cl.Success, SuccessWhole, SuccessFirstByte)
		}
		if err := firstError(
			within(at+".max_deadline_ms", cl.MaxDeadlineMS, 1, MaxDeadlineMS),
			within(at+".deadline_ms", cl.DeadlineMS, 1, cl.MaxDeadlineMS),
			within(at+".reserve_ms", *cl.ReserveMS, 0, MaxDeadlineMS),
			within(at+".word_limit", int64(cl.WordLimit), 1, 100_000),
			within(at+".max_output_tokens", int64(cl.MaxOutputTokens), 1, 1_000_000),
			checkBudget(at, cl.BudgetMicroPerDay),
		); err != nil {
			return err
		}
		prompt, err := cl.SystemPrompt()
		if err != nil {
			return broker.Fieldf(at+".prompt", "%v", err)
		}
		cl.promptBytes = int64(len(prompt))
		c.Classes[n] = cl
	}
	if _, ok := c.Classes[c.DefaultClass]; !ok {
		return broker.Fieldf("default_class", "%q is not among the classes", c.DefaultClass)
	}
	return nil
}

// sha256Hex is a SHA-256 in hex.
var sha256Hex = regexp.MustCompile(`^[0-9a-f]{64}$`)

func (c *Config) completeAccess() error {
	seen := map[string]bool{}
	check := func(at string, keys []Key) error {
		for i, k := range keys {
			switch at := fmt.Sprintf("access.%s[%d]", at, i); {
			case !name.MatchString(k.Name):
				return broker.Fieldf(at+".name", "%q: use a-z, 0-9, '.', '_' and '-'", k.Name)
			case !sha256Hex.MatchString(k.KeySHA256):
				return broker.Fieldf(at+".key_sha256", "must be 64 hex digits: the key's SHA-256, not the key")
			case seen[k.KeySHA256]:
				return broker.Fieldf(at+".key_sha256", "is used twice")
			}
			seen[k.KeySHA256] = true
		}
		return nil
	}
	if err := firstError(check("producers", c.Access.Producers), check("oncall", c.Access.OnCall)); err != nil {
		return err
	}
	if !c.Access.Keyed() && !c.Access.Open && !Loopback(c.Listen) {
		return broker.Fieldf("listen", "%q is reachable from other machines, and no keys are configured: set access.producers and access.oncall, or access.open on a closed network", c.Listen)
	}
	return nil
}

// completeLab refuses a lab's switches to a configuration that could reach
// anything else than a lab.
func (c *Config) completeLab() error {
	if !c.Lab.RecheckOff {
		return nil
	}
	for _, path := range slackgate.Paths {
		for i := range c.Pool(path).Backends {
			b := &c.Pool(path).Backends[i]
			at := fmt.Sprintf("pools.%s.backends[%d]", path, i)
			u, err := url.Parse(b.URL)
			switch {
			case err != nil || !LoopbackHost(u.Hostname()):
				return broker.Fieldf("lab.recheck_off", "is for lab backends only, and %s.url is not on loopback", at)
			case b.KeyEnv != "" || b.KeyFile != "":
				return broker.Fieldf("lab.recheck_off", "is for lab backends only, and %s has a key", at)
			}
		}
	}
	return nil
}

func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

func within(field string, v, lo, hi int64) error {
	if v < lo || v > hi {
		return broker.Fieldf(field, "%d is outside %d..%d", v, lo, hi)
	}
	return nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
