package lab

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// Bounds on what a profile may say.
const (
	// MaxDelay is the longest first byte, tail or fault delay.
	MaxDelay = 24 * time.Hour
	// MaxRate is the highest throughput, in tokens per second.
	MaxRate = 1_000_000
	// maxPoints is how many points a load curve may have.
	maxPoints = 64
)

// ArticleLoad is the profile with the knee that the article on usable answers
// measured: 189 tokens/s alone, 433 with 8, 474 with 32.
const ArticleLoad = "load:1=189,8=433,32=474"

// z95 is the 95th percentile of the standard normal distribution.
const z95 = 1.6448536269514722

// Profile says how long a request in service takes to its first byte. It is a
// value; the zero Profile answers at once. There are three kinds:
//
//   - fixed: always the same time.
//   - lognormal: drawn with a given 95th percentile and deviation of the
//     logarithm. The draws follow from the seed, in the order in which requests
//     enter service.
//   - load: no latency of its own. Requests in service share a throughput that
//     depends on how many they are, so that latency grows with load past the
//     knee. Each token, the first included, takes concurrent/throughput seconds.
//     Between points the total is interpolated, beyond the last it stays, below
//     the first it is that of the first. It cannot be combined with a tail.
type Profile struct {
	kind  profileKind
	first time.Duration // fixed: always this; lognormal: the 95th percentile
	sigma float64       // lognormal: deviation of the logarithm
	seed  uint64        // lognormal: of the draws
	load  []loadPoint   // load: by rising concurrency
}

type profileKind uint8

const (
	kindFixed profileKind = iota
	kindLognormal
	kindLoad
)

// loadPoint is one measurement of a backend's knee: what all requests together
// get, in tokens per second, when this many are in service.
type loadPoint struct {
	concurrent int
	tokensPerS float64
}

// ParseProfile reads the form that String writes:
//
//	fixed:1200ms
//	lognormal:p95=1200ms,sigma=0.5,seed=1   (sigma 0.5 and seed 1 if left out)
//	load:1=189,8=433,32=474                 (tokens per second by concurrency)
func ParseProfile(s string) (Profile, error) {
	var p Profile
	var err error
	switch kind, rest, _ := strings.Cut(s, ":"); kind {
	case "fixed":
		p.first, err = parseDelay(rest)
	case "lognormal":
		p, err = parseLognormal(rest)
	case "load":
		p, err = parseLoad(rest)
	default:
		err = errors.New("want one that begins with fixed:, lognormal: or load:, and what belongs to it")
	}
	if err != nil {
		return Profile{}, fmt.Errorf("profile %.64q: %w", s, err)
	}
	return p, nil
}

func parseLognormal(s string) (Profile, error) {
	p := Profile{kind: kindLognormal, sigma: 0.5, seed: 1}
	for field := range strings.SplitSeq(s, ",") {
		var err error
		switch key, value, _ := strings.Cut(field, "="); key {
		case "p95":
			p.first, err = parseDelay(value)
		case "sigma":
			p.sigma, err = strconv.ParseFloat(value, 64)
		case "seed":
			p.seed, err = strconv.ParseUint(value, 10, 64)
		default:
			err = fmt.Errorf("unknown field %q: want p95, sigma or seed", key)
		}
		if err != nil {
			return Profile{}, err
		}
	}
	if p.first == 0 {
		return Profile{}, errors.New("p95: want more than 0")
	}
	if !(p.sigma >= 0 && p.sigma <= 3) { // not a number is refused too
		return Profile{}, fmt.Errorf("sigma of %v: want 0 to 3", p.sigma)
	}
	return p, nil
}

func parseLoad(s string) (Profile, error) {
	p := Profile{kind: kindLoad}
	last := 0
	for field := range strings.SplitSeq(s, ",") {
		at, rate, _ := strings.Cut(field, "=")
		n, err := strconv.Atoi(at)
		if err != nil {
			return Profile{}, err
		}
		if n <= last {
			return Profile{}, fmt.Errorf("a load point at %d concurrent: want 1 or more, rising", n)
		}
		last = n
		total, err := parseRate(rate)
		if err != nil {
			return Profile{}, err
		}
		p.load = append(p.load, loadPoint{n, total})
	}
	if len(p.load) > maxPoints {
		return Profile{}, fmt.Errorf("%d load points: want 1 to %d", len(p.load), maxPoints)
	}
	return p, nil
}

// parseDelay reads a duration of 0 to [MaxDelay].
func parseDelay(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err == nil && (d < 0 || d > MaxDelay) {
		err = fmt.Errorf("%v: want 0 to %v", d, MaxDelay)
	}
	return d, err
}

// parseRate reads a throughput in tokens per second, up to [MaxRate].
func parseRate(s string) (float64, error) {
	rate, err := strconv.ParseFloat(s, 64)
	if err == nil && !(rate > 0 && rate <= MaxRate) { // not a number is refused too
		err = fmt.Errorf("%v tokens/s: want more than 0, at most %d", rate, MaxRate)
	}
	return rate, err
}

// String returns the profile in the form that [ParseProfile] reads.
func (p Profile) String() string {
	switch p.kind {
	case kindFixed:
	case kindLognormal:
		return fmt.Sprintf("lognormal:p95=%v,sigma=%v,seed=%d", p.first, p.sigma, p.seed)
	case kindLoad:
		points := make([]string, len(p.load))
		for i, pt := range p.load {
			points[i] = fmt.Sprintf("%d=%v", pt.concurrent, pt.tokensPerS)
		}
		return "load:" + strings.Join(points, ",")
	}
	return "fixed:" + p.first.String()
}

// perToken returns how long one request waits for one token when n are in
// service. It is 0 unless the profile is one of load.
func (p Profile) perToken(n int) time.Duration {
	if p.kind != kindLoad {
		return 0
	}
	n = max(n, 1)
	return time.Duration(float64(n) / p.total(n) * float64(time.Second))
}

// total returns the throughput of n requests together, in tokens per second.
func (p Profile) total(n int) float64 {
	prev := p.load[0]
	for _, pt := range p.load {
		if n <= pt.concurrent {
			if pt == prev {
				return pt.tokensPerS
			}
			part := float64(n-prev.concurrent) / float64(pt.concurrent-prev.concurrent)
			return prev.tokensPerS + part*(pt.tokensPerS-prev.tokensPerS)
		}
		prev = pt
	}
	return prev.tokensPerS
}

// source returns what a lab draws the profile's first-byte times from. It is
// not safe for concurrent use.
func (p Profile) source() *rand.Rand { return rand.New(rand.NewPCG(p.seed, 0x1ee5a7)) }

// Draw returns a first-byte time, drawn from rng where it is random; 0 for a
// profile of load, whose first token is paced like the others.
func (p Profile) Draw(rng *rand.Rand) time.Duration {
	if p.kind != kindLognormal {
		return p.first
	}
	ns := float64(p.first) * math.Exp(p.sigma*(rng.NormFloat64()-z95))
	return time.Duration(min(ns, float64(MaxDelay)))
}

// Steady returns the time to the first byte of a profile that has but one; false
// for the others.
func (p Profile) Steady() (time.Duration, bool) { return p.first, p.kind == kindFixed }

// Random reports whether first-byte times differ from call to call.
func (p Profile) Random() bool { return p.kind == kindLognormal }

// Tail says how the rest of an answer follows its first byte. The zero Tail
// sends it at once.
type Tail struct {
	total time.Duration
	rate  float64 // tokens per second
}

// ParseTail reads "0" (at once), a duration such as "2800ms" (the whole rest is
// spread evenly over it, whatever its length) or "50/s" (tokens per second).
func ParseTail(s string) (t Tail, err error) {
	if rate, ok := strings.CutSuffix(s, "/s"); ok {
		t.rate, err = parseRate(rate)
	} else {
		t.total, err = parseDelay(s)
	}
	if err != nil {
		return Tail{}, fmt.Errorf("tail %.64q: %w", s, err)
	}
	return t, nil
}

// String returns the tail in the form that [ParseTail] reads.
func (t Tail) String() string {
	switch {
	case t.rate > 0:
		return strconv.FormatFloat(t.rate, 'g', -1, 64) + "/s"
	case t.total > 0:
		return t.total.String()
	}
	return "0"
}

// at returns when, after the first byte, piece i of n is due; i == n is the
// end of the answer.
func (t Tail) at(i, n int) time.Duration {
	if t.rate > 0 {
		// The end comes with the last piece.
		return time.Duration(float64(min(i, n-1)) / t.rate * float64(time.Second))
	}
	if n <= 0 {
		return 0
	}
	return time.Duration(float64(t.total) * float64(i) / float64(n))
}
