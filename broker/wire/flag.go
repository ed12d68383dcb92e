package wire

import "leeway/broker/flag"

// FlagView is a flag as it holds now.
type FlagView struct {
	Name  flag.Name `json:"name"`
	Class string    `json:"class,omitempty"`
	// Value is what holds; Source is "config" or "flag".
	Value  string `json:"value"`
	Source string `json:"source"`
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
	AtMS   int64  `json:"at_ms,omitempty"`
	// UntilAtMS is when the value ends by itself; absent: when it is cleared.
	UntilAtMS int64 `json:"until_ms,omitempty"`
}

// FlagAnswer is the new state of a flag and what it does to the gate now.
type FlagAnswer struct {
	Flag FlagView `json:"flag"`
	// Gate is what the gate would say to a job of the class now; absent when
	// it cannot say.
	Gate *Verdict `json:"gate,omitempty"`
}

// FlagChange is a change of a flag. Reason is required.
type FlagChange struct {
	Value  string `json:"value"`
	Reason string `json:"reason"`
	By     string `json:"by,omitempty"`
	Class  string `json:"class,omitempty"`
	// ForMS is how long the value stays; 0: until it is cleared.
	ForMS int64 `json:"for_ms,omitempty"`
}
