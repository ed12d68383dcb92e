package shard

import (
	"fmt"
	"testing"

	"leeway/broker"
	"leeway/broker/admission"
	"leeway/broker/config"
)

// The same key may come with any class, in any body: where it leads is told by
// its producer and by itself, also where a class has a home.
func TestAKeyLeadsToOneShard(t *testing.T) {
	t.Parallel()
	cfg, err := config.Parse([]byte("classes: {summary: {}, nightly: {budget_micro_per_day: 1}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	a := NewAdmitter(cfg.Home, make([]*admission.Admitter, 2)...)
	for i := range 20 {
		key := broker.IdempotencyKey{Value: fmt.Sprint(i), BodyHash: "any"}
		var at []int
		for _, class := range []string{"summary", "nightly"} {
			job := &broker.Submission{Spec: broker.Spec{ID: "j", Class: class, Producer: "p"}, Key: key}
			if err := a.Place(job); err != nil {
				t.Fatal(err)
			}
			at = append(at, Of(job.ID, 2))
		}
		if at[0] != at[1] {
			t.Errorf("key %d leads to shard %d with one class and to %d with the other", i, at[0], at[1])
		}
	}
}
