package lab

import (
	"crypto/sha256"
	"sync"
)

// maxKeys is how many keys are remembered; the oldest go first.
const maxKeys = 10_000

// newest is a map that holds the newest [maxKeys] keys. It is not safe for
// concurrent use.
type newest[V any] struct {
	values map[string]V
	order  []string // of the keys, oldest first
}

func (n *newest[V]) get(key string) (V, bool) {
	v, ok := n.values[key]
	return v, ok
}

func (n *newest[V]) put(key string, v V) {
	if n.values == nil {
		n.values = map[string]V{}
	}
	if _, known := n.values[key]; !known {
		n.order = append(n.order, key)
	}
	n.values[key] = v
	if len(n.order) > maxKeys {
		delete(n.values, n.order[0])
		n.order = n.order[1:]
	}
}

// dedupe remembers answers by idempotency key, those being made included.
type dedupe struct {
	mu   sync.Mutex
	made newest[*made]
}

// made is one answer, or the making of one.
type made struct {
	body   [sha256.Size]byte // of the request
	done   chan struct{}     // closed when the making has ended
	failed bool              // it ended badly; read after done
	ans    answer
}

// claim returns the entry for key and whether the caller is now its maker, who
// must call finish. An entry for another body is a conflict. What failed is
// made anew.
func (d *dedupe) claim(key string, body [sha256.Size]byte) (m *made, mine, conflict bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if m, ok := d.made.get(key); ok && !m.failed {
		return m, false, m.body != body
	}
	m = &made{body: body, done: make(chan struct{})}
	d.made.put(key, m)
	return m, true, false
}

// finish ends the making of an answer.
func (d *dedupe) finish(m *made, ans answer, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m.ans, m.failed = ans, !ok
	close(m.done)
}
