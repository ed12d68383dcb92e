package config

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"leeway/broker"
	"leeway/slackgate"
)

// Knee is a measured limit. It has an expiry: another model or machine has
// another one.
type Knee struct {
	// Limit is the number of calls at once beyond which the backend gets no
	// faster.
	Limit int `json:"limit" yaml:"limit"`
	// MeasuredOn is the day of the measurement, as 2026-11-30.
	MeasuredOn string `json:"measured_on" yaml:"measured_on"`
	// ValidDays is how long it is believed. Defaults to 90.
	ValidDays int `json:"valid_days" yaml:"valid_days"`
	// Fingerprint is that of the backend measured; see [Backend.Fingerprint].
	// Left out: it is believed of whatever stands beside it.
	Fingerprint string `json:"fingerprint,omitempty" yaml:"fingerprint"`
}

// DefaultKneeDays is how long a measured knee is believed.
const DefaultKneeDays = 90

// Why a measured knee is out of date.
const (
	KneeExpired = "expired" // measured too long ago
	KneeChanged = "changed" // measured on another endpoint or model
)

// LastDay is the last day on which the measurement is believed, as 2026-11-30.
func (k *Knee) LastDay() string {
	day, err := time.Parse(time.DateOnly, k.MeasuredOn)
	if err != nil {
		return "" // checked when the file was read
	}
	return day.AddDate(0, 0, k.ValidDays).Format(time.DateOnly)
}

// KneeOutOfDate says why the backend's measured knee is not to be believed at
// now: KneeExpired, KneeChanged, or nothing.
func (b *Backend) KneeOutOfDate(now time.Time) string {
	switch k := b.Knee; {
	case k == nil:
	case k.Fingerprint != "" && k.Fingerprint != b.Fingerprint():
		return KneeChanged
	case now.UTC().Format(time.DateOnly) > k.LastDay():
		return KneeExpired
	}
	return ""
}

// Fingerprint names what a measurement was made on: protocol, address and
// model. It cannot see other hardware behind the same address, which is why a
// measurement expires.
func (b *Backend) Fingerprint() string {
	at := b.Protocol + "\x00" + strings.TrimRight(b.URL, "/") + "\x00" + b.Model
	if b.Options.Path != "" {
		at += "\x00" + b.Options.Path
	}
	sum := sha256.Sum256([]byte(at))
	return hex.EncodeToString(sum[:6])
}

func (k *Knee) complete(at string) error {
	if k == nil {
		return nil
	}
	orDefault(&k.ValidDays, DefaultKneeDays)
	_, bad := time.Parse(time.DateOnly, k.MeasuredOn)
	return cmp.Or(
		checkf(bad == nil, at+".measured_on", "is not a day such as 2026-11-30"),
		within(at+".limit", k.Limit, 1, MaxSlots),
		within(at+".valid_days", k.ValidDays, 1, 3650),
	)
}

// measured is what stands for the knee in the place of a pool's limit.
const measured = "measured"

// takeMeasured notes which pools' limits are measured, and puts a number there
// that can be read.
func (c *Config) takeMeasured(v *ast.MappingValueNode) bool {
	for _, path := range slackgate.Paths {
		if v.Value.Type() == ast.StringType && v.Value.GetPath() == "$.pools."+path.String()+".limit" && v.Value.String() == measured {
			t := *v.Value.GetToken()
			v.Value = ast.Integer(token.New("0", "0", t.Position))
			c.Pool(path).MeasuredLimit = true
			return true
		}
	}
	return false
}

// completeMeasured sets a measured limit: the knee of the backend that is
// called while all is well.
func (c *Config) completeMeasured(p *Pool, at string) error {
	switch {
	case !p.MeasuredLimit:
	case len(p.Backends) == 0:
		return broker.Fieldf(at+".limit", "is measured, and the pool has no backend to measure")
	case p.Backends[0].Knee != nil:
		p.Limit = p.Backends[0].Knee.Limit
	case c.toMeasure:
		p.Limit = 1
	default:
		name := p.Backends[0].Name
		return broker.Fieldf(at+".limit",
			"is measured, and backend %.64q has no measured knee: run leeway knee --config FILE --backend %.64s", name, name)
	}
	return nil
}

// MeasuredKnee is a backend's entry in a knee file.
type MeasuredKnee struct {
	Backend string `json:"backend"`
	Model   string `json:"model"`
	Knee
	// FirstByteP95MS is the p95 of the first byte at the limit, rounded up.
	FirstByteP95MS int64 `json:"first_byte_p95_ms,omitempty"`
	// Steps are the measurement itself, for whoever wants to see it.
	Steps json.RawMessage `json:"steps,omitempty"`
}

// KneeFile holds what was measured, one entry a backend.
type KneeFile struct {
	Knees []MeasuredKnee `json:"knees"`
}

// ReadKnees reads a knee file. One that is not there holds nothing.
func ReadKnees(path string) (*KneeFile, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return &KneeFile{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	raw, err := readBounded(f)
	if err != nil {
		return nil, err
	}
	return parseKnees(raw)
}

func parseKnees(raw []byte) (*KneeFile, error) {
	var file KneeFile
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&file); err != nil {
		return nil, err
	}
	if d.More() {
		return nil, errors.New("more than one document in the file")
	}
	seen := map[string]bool{}
	for i := range file.Knees {
		k, at := &file.Knees[i], fmt.Sprintf("knees[%d]", i)
		if err := cmp.Or(
			named(at+".backend", k.Backend),
			checkf(!seen[k.Backend], at+".backend", "%q is there twice", k.Backend),
			k.complete(at),
		); err != nil {
			return nil, err
		}
		seen[k.Backend] = true
	}
	return &file, nil
}

// Put adds an entry, in the place of the one for the same backend.
func (f *KneeFile) Put(k *MeasuredKnee) {
	f.Knees = append(slices.DeleteFunc(f.Knees, func(o MeasuredKnee) bool { return o.Backend == k.Backend }), *k)
	slices.SortFunc(f.Knees, func(a, b MeasuredKnee) int { return strings.Compare(a.Backend, b.Backend) })
}

// Write replaces the file in one step.
func (f *KneeFile) Write(path string) error {
	raw, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".knee-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp.Name()) }() // gone already if all went well
	_, err = tmp.Write(append(raw, '\n'))
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Sync(), tmp.Close())
	if err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

// KneePath is where the knee file is for a configuration read from file; empty
// if it names none.
func (c *Config) KneePath(file string) string {
	if c.KneeFile == "" || filepath.IsAbs(c.KneeFile) {
		return c.KneeFile
	}
	return filepath.Join(filepath.Dir(file), c.KneeFile)
}

// readKnees gives each backend without a knee of its own the one of the file.
func (c *Config) readKnees(file string) error {
	at := c.KneePath(file)
	if at == "" {
		return nil
	}
	k, err := ReadKnees(at)
	if err != nil {
		return broker.Fieldf("knee_file", "%s: %v", at, err)
	}
	for i := range k.Knees {
		if b := c.Backend(k.Knees[i].Backend); b != nil && b.Knee == nil {
			b.Knee = &k.Knees[i].Knee
		}
	}
	return nil
}
