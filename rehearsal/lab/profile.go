package lab

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
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

// z95 is the 95th percentile of the standard normal distribution.
const z95 = 1.6448536269514722

// Profile says how long a request in service takes to its first byte. It is a
// value; the zero Profile answers at once.
type Profile struct {
	kind  profileKind
	fixed time.Duration // fixed: always this; lognormal: the 95th percentile
	sigma float64       // lognormal: deviation of the logarithm
	seed  uint64        // lognormal: of the draws
	load  []LoadPoint   // load: by rising Concurrent
}

type profileKind uint8

const (
	kindFixed profileKind = iota
	kindLognormal
	kindLoad
)

// LoadPoint is one measurement of a backend's knee: what all requests together
// get, in tokens per second, when this many are in service.
type LoadPoint struct {
	Concurrent int
	TokensPerS float64
}

// Fixed returns a profile whose first byte always takes d.
func Fixed(d time.Duration) (Profile, error) {
	if d < 0 || d > MaxDelay {
		return Profile{}, fmt.Errorf("first byte of %v: want 0 to %v", d, MaxDelay)
	}
	return Profile{fixed: d}, nil
}

// Lognormal returns a profile whose first byte is lognormal with the given
// 95th percentile and deviation of the logarithm (0 to 3). The draws follow
// from the seed, in the order in which requests enter service.
func Lognormal(p95 time.Duration, sigma float64, seed uint64) (Profile, error) {
	if p95 <= 0 || p95 > MaxDelay {
		return Profile{}, fmt.Errorf("p95 of %v: want more than 0, at most %v", p95, MaxDelay)
	}
	if !(sigma >= 0 && sigma <= 3) {
		return Profile{}, fmt.Errorf("sigma of %v: want 0 to 3", sigma)
	}
	return Profile{kind: kindLognormal, fixed: p95, sigma: sigma, seed: seed}, nil
}

// Load returns a profile without a latency of its own: requests in service
// share a throughput that depends on how many they are, so that latency grows
// with load past the knee. Each token, the first included, takes
// concurrent/throughput seconds. Between points the total is interpolated,
// beyond the last it stays, below the first it is that of the first. It cannot
// be combined with a tail.
func Load(points ...LoadPoint) (Profile, error) {
	if len(points) == 0 || len(points) > maxPoints {
		return Profile{}, fmt.Errorf("%d load points: want 1 to %d", len(points), maxPoints)
	}
	for i, p := range points {
		if p.Concurrent < 1 || (i > 0 && p.Concurrent <= points[i-1].Concurrent) {
			return Profile{}, fmt.Errorf("load point %d is at %d concurrent: want 1 or more, rising", i+1, p.Concurrent)
		}
		if !(p.TokensPerS > 0 && p.TokensPerS <= MaxRate) {
			return Profile{}, fmt.Errorf("load point %d gives %v tokens/s: want more than 0, at most %d", i+1, p.TokensPerS, MaxRate)
		}
	}
	return Profile{kind: kindLoad, load: slices.Clone(points)}, nil
}

// ArticleLoad returns the knee that the article on usable answers measured: 189
// tokens/s alone, 433 with 8, 474 with 32.
func ArticleLoad() Profile {
	return Profile{kind: kindLoad, load: []LoadPoint{{1, 189}, {8, 433}, {32, 474}}}
}

// ParseProfile reads the form that String writes:
//
//	fixed:1200ms
//	lognormal:p95=1200ms,sigma=0.5,seed=1   (sigma 0.5 and seed 1 if left out)
//	load:1=189,8=433,32=474                 (tokens per second by concurrency)
func ParseProfile(s string) (Profile, error) {
	p, err := parseProfile(s)
	if err != nil {
		return Profile{}, fmt.Errorf("profile %.64q: %w", s, err)
	}
	return p, nil
}

func parseProfile(s string) (Profile, error) {
	kind, rest, _ := strings.Cut(s, ":")
	switch kind {
	case "fixed":
		d, err := time.ParseDuration(rest)
		if err != nil {
			return Profile{}, err
		}
		return Fixed(d)
	case "lognormal":
		p95, sigma, seed := time.Duration(0), 0.5, uint64(1)
		for field := range strings.SplitSeq(rest, ",") {
			key, value, _ := strings.Cut(field, "=")
			var err error
			switch key {
			case "p95":
				p95, err = time.ParseDuration(value)
			case "sigma":
				sigma, err = strconv.ParseFloat(value, 64)
			case "seed":
				seed, err = strconv.ParseUint(value, 10, 64)
			default:
				err = fmt.Errorf("unknown field %q: want p95, sigma or seed", key)
			}
			if err != nil {
				return Profile{}, err
			}
		}
		return Lognormal(p95, sigma, seed)
	case "load":
		var points []LoadPoint
		for field := range strings.SplitSeq(rest, ",") {
			at, rate, _ := strings.Cut(field, "=")
			n, err := strconv.Atoi(at)
			if err != nil {
				return Profile{}, err
			}
			x, err := strconv.ParseFloat(rate, 64)
			if err != nil {
				return Profile{}, err
			}
			points = append(points, LoadPoint{n, x})
		}
		return Load(points...)
	}
	return Profile{}, errors.New("want one that begins with fixed:, lognormal: or load:, and what belongs to it")
}

// String returns the profile in the form that [ParseProfile] reads.
func (p Profile) String() string {
	switch p.kind {
	case kindFixed:
	case kindLognormal:
		return fmt.Sprintf("lognormal:p95=%v,sigma=%v,seed=%d", p.fixed, p.sigma, p.seed)
	case kindLoad:
		var b strings.Builder
		b.WriteString("load:")
		for i, pt := range p.load {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, "%d=%v", pt.Concurrent, pt.TokensPerS)
		}
		return b.String()
	}
	return "fixed:" + p.fixed.String()
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
		if n <= pt.Concurrent {
			if pt.Concurrent == prev.Concurrent {
				return pt.TokensPerS
			}
			part := float64(n-prev.Concurrent) / float64(pt.Concurrent-prev.Concurrent)
			return prev.TokensPerS + part*(pt.TokensPerS-prev.TokensPerS)
		}
		prev = pt
	}
	return prev.TokensPerS
}

// sampler draws first-byte times. It is not safe for concurrent use.
type sampler struct {
	profile Profile
	rng     *rand.Rand
}

func newSampler(p Profile) *sampler {
	return &sampler{profile: p, rng: rand.New(rand.NewPCG(p.seed, 0x1ee5a7))}
}

// next returns the next first-byte time.
func (s *sampler) next() time.Duration { return s.profile.Draw(s.rng) }

// Draw returns a first-byte time, drawn from rng where it is random; 0 for a
// profile of load, whose first token is paced like the others.
func (p Profile) Draw(rng *rand.Rand) time.Duration {
	switch p.kind {
	case kindFixed:
	case kindLoad:
		return 0
	case kindLognormal:
		ns := float64(p.fixed) * math.Exp(p.sigma*(rng.NormFloat64()-z95))
		return time.Duration(min(ns, float64(MaxDelay)))
	}
	return p.fixed
}

// Steady returns the time to the first byte of a profile that has but one; false
// for the others.
func (p Profile) Steady() (time.Duration, bool) { return p.fixed, p.kind == kindFixed }

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
func ParseTail(s string) (Tail, error) {
	t, err := parseTail(s)
	if err != nil {
		return Tail{}, fmt.Errorf("tail %.64q: %w", s, err)
	}
	return t, nil
}

func parseTail(s string) (Tail, error) {
	if num, ok := strings.CutSuffix(s, "/s"); ok {
		rate, err := strconv.ParseFloat(num, 64)
		if err != nil {
			return Tail{}, err
		}
		if !(rate > 0 && rate <= MaxRate) {
			return Tail{}, fmt.Errorf("want more than 0, at most %d tokens per second", MaxRate)
		}
		return Tail{rate: rate}, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return Tail{}, err
	}
	if d < 0 || d > MaxDelay {
		return Tail{}, fmt.Errorf("want 0 to %v", MaxDelay)
	}
	return Tail{total: d}, nil
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
