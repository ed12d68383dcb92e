package lab

import (
	"container/list"
	"crypto/sha256"
	"sync"
)

// maxKeys is how many idempotency keys are remembered; the oldest go first.
const maxKeys = 10_000

// dedupe remembers answers by idempotency key, those being made included.
type dedupe struct {
	mu      sync.Mutex
	entries map[string]*made
	order   list.List // of keys, oldest first
}

// made is one answer, or the making of one.
type made struct {
	body [sha256.Size]byte // of the request
	at   *list.Element     // its key, in the order
	done chan struct{}     // closed when the making has ended
	ok   bool              // it ended well; read after done
	ans  answer
}

// claim returns the entry for key and whether the caller is now its maker, who
// must call finish. An entry for another body is a conflict.
func (d *dedupe) claim(key string, body [sha256.Size]byte) (m *made, mine, conflict bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if m, ok := d.entries[key]; ok {
		return m, false, m.body != body
	}
	if d.entries == nil {
		d.entries = map[string]*made{}
	}
	m = &made{body: body, done: make(chan struct{})}
	d.entries[key] = m
	m.at = d.order.PushBack(key)
	for d.order.Len() > maxKeys {
		oldest := d.order.Front()
		delete(d.entries, d.order.Remove(oldest).(string))
	}
	return m, true, false
}

// finish ends the making of key's answer. If it failed, the next request with
// the key makes it anew.
func (d *dedupe) finish(key string, m *made, ans answer, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m.ans, m.ok = ans, ok
	if !ok && d.entries[key] == m {
		delete(d.entries, key)
		d.order.Remove(m.at)
	}
	close(m.done)
}

// onceKeys remembers which keys have met a fault that shows itself once. It is
// not safe for concurrent use.
type onceKeys struct {
	seen  map[string]bool
	order list.List
}

// first reports whether key is met for the first time.
func (o *onceKeys) first(key string) bool {
	if o.seen[key] {
		return false
	}
	if o.seen == nil {
		o.seen = map[string]bool{}
	}
	o.seen[key] = true
	o.order.PushBack(key)
	if o.order.Len() > maxKeys {
		delete(o.seen, o.order.Remove(o.order.Front()).(string))
	}
	return true
}
