package httpapi

import (
	"context"
	"sync"
)

// notifier wakes those who wait for a job's end.
type notifier struct {
	mu      sync.Mutex // guards waiters
	waiters map[string]map[chan struct{}]struct{}
}

func newNotifier() *notifier {
	return &notifier{waiters: map[string]map[chan struct{}]struct{}{}}
}

// wait registers for a job's end. The channel is closed by it; done must be
// called.
func (n *notifier) wait(id string) (ended <-chan struct{}, done func()) {
	ch := make(chan struct{})
	n.mu.Lock()
	defer n.mu.Unlock()
	set := n.waiters[id]
	if set == nil {
		set = map[chan struct{}]struct{}{}
		n.waiters[id] = set
	}
	set[ch] = struct{}{}
	return ch, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if set := n.waiters[id]; set != nil {
			delete(set, ch)
			if len(set) == 0 {
				delete(n.waiters, id)
			}
		}
	}
}

// run wakes waiters as jobs end, until ctx is done.
func (n *notifier) run(ctx context.Context, ended <-chan string) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case id, ok := <-ended:
			if !ok {
				return nil
			}
			n.mu.Lock()
			for ch := range n.waiters[id] {
				close(ch)
			}
			delete(n.waiters, id)
			n.mu.Unlock()
		}
	}
}
