package latency

// Series names a thing whose latency is measured and what of it.
type Series struct {
	// Name is "pool.paid", "pool.free" or "backend.<name>".
	Name string
	// Kind is what is measured.
	Kind Kind
}

// Kind is what is measured of a call.
type Kind string

// The kinds.
const (
	// FirstByte is the time to the first answer text.
	FirstByte Kind = "first_byte"
	// Hold is the time to the last byte: how long the slot stays taken.
	Hold Kind = "hold"
)

// Key is the series' name in the store.
func (s Series) Key() string { return s.Name + ":" + string(s.Kind) }

// Sample is one measured call.
type Sample struct {
	Series
	MS int64
	// Cut is set when the call was cut before what is measured came: it would
	// have taken longer than MS.
	Cut bool
}

// SliceOf is the number of the slice that holds an instant.
func SliceOf(nowMS int64) int64 { return nowMS / SliceMS }
