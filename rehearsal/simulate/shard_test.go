package simulate

import (
	"reflect"
	"strings"
	"testing"

	"leeway/rehearsal/trace"
	"leeway/slackgate"
)

// replaySharded is [Replay] over shards. With one it is the same run.
func replaySharded(w Workload, s Service, p Policy, over Sharding, seed uint64) (Outcome, []JobRun, error) {
	if err := over.Check(&s); err != nil {
		return Outcome{}, nil, err
	}
	o, jobs := replay(w, s, p, over, seed)
	return o, jobs, nil
}

// small is a deployment of eight and four workers; 16 jobs a second are nine
// tenths of its load.
func small(perSecond float64, seconds int) (Workload, Service) {
	s := LognormalService(0.5)
	s.Workers = [slackgate.NumPaths]int{slackgate.Paid: 8, slackgate.Free: 4}
	return PoissonWorkload(perSecond, seconds, PaidFirst), s
}

func TestOneShardIsTheUnshardedRun(t *testing.T) {
	w, s := small(24, 45)
	for _, p := range []Policy{SeedNoRecheck, SeedRecheck, ListOrder, Predictive, PredictiveLearns, NoAdmission} {
		want, wantJobs := Replay(w, s, p, 3)
		got, gotJobs, err := replaySharded(w, s, p, Sharding{Shards: 1, Choices: 2, ViewAgeMS: 100}, 3)
		if err != nil || !reflect.DeepEqual(got, want) || !reflect.DeepEqual(gotJobs, wantJobs) {
			t.Errorf("%s: %+v over one shard, %+v without; %v", p.Name, got, want, err)
		}
	}
	// The table's first row is the run it holds the others against.
	sc := Scenario{w, s, []Policy{Predictive}}
	if err := sc.ShardRows(2, []Sharding{{1, 2, 0}}, goOn, func(r ShardRow) error {
		if r.SameVerdict != 1 || r.LostUsable != 0 || r.LostUsableError != 0 || r.IdleWhileWaitingMS != 0 {
			t.Errorf("%+v", r)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// Every job has one end under every policy, and a usable answer is in time.
func TestShardsLoseNoJob(t *testing.T) {
	w, s := small(24, 45)
	arrivals := w.Make(1)
	for _, p := range []Policy{SeedNoRecheck, SeedRecheck, Predictive, PredictiveLearns, NoAdmission} {
		for _, over := range []Sharding{{2, 1, 0}, {3, 2, 0}, {4, 2, 250}} {
			o, jobs, err := replaySharded(w, s, p, over, 1)
			if err != nil {
				t.Fatal(err)
			}
			if sum := o.Usable + o.Late + o.Dropped + o.Rejected; sum != o.Offered || o.Offered != len(jobs) || o.Usable == 0 {
				t.Errorf("%s, %+v: %d of %d jobs have an end: %+v", p.Name, over, sum, o.Offered, o)
			}
			usable := 0
			for i, j := range jobs {
				if ends := btoi(j.Usable) + btoi(j.Late) + btoi(j.Dropped) + btoi(j.Result.Path == slackgate.Reject); ends != 1 {
					t.Errorf("%s, %+v: job %d has %d ends", p.Name, over, i, ends)
				}
				if due := arrivals[i].lastDueAtMS(); j.Usable && (j.EndedAtMS > due || j.FirstAtMS > due-arrivals[i].ReserveMS) {
					t.Errorf("%s, %+v: job %d is usable and ended at %d, due %d", p.Name, over, i, j.EndedAtMS, due)
				}
				usable += btoi(j.Usable)
			}
			if usable != o.Usable {
				t.Errorf("%s, %+v: %d usable jobs, the outcome says %d", p.Name, over, usable, o.Usable)
			}
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// The better of two loses no more than one taken at random, and leaves fewer
// slots idle beside waiting jobs; a view of a second loses no less than a fresh one.
func TestTwoChoicesLoseNoMoreThanOne(t *testing.T) {
	w, s := small(16, 90)
	sc := Scenario{w, s, []Policy{Predictive}}
	var rows []ShardRow
	if err := sc.ShardRows(6, []Sharding{{4, 1, 0}, {4, 2, 0}, {4, 2, 1000}}, goOn, func(r ShardRow) error {
		t.Logf("%+v", r)
		rows = append(rows, r)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	one, two, old := rows[0], rows[1], rows[2]
	if two.LostUsable > one.LostUsable || two.IdleWhileWaitingMS > one.IdleWhileWaitingMS || two.SameVerdict < one.SameVerdict {
		t.Errorf("two choices: %+v; one: %+v", two, one)
	}
	if one.LostUsable <= 0 || one.IdleWhileWaitingMS == 0 {
		t.Errorf("one choice costs nothing: %+v", one)
	}
	if old.IdleWhileWaitingMS < two.IdleWhileWaitingMS {
		t.Errorf("a view of a second: %+v; a fresh one: %+v", old, two)
	}
}

// A slot counts as idle while a job waits for the same pool in another shard,
// worked out by hand: two paid workers, one a shard, and fixed calls of 1200 ms.
func TestIdleBesideWaiting(t *testing.T) {
	s := FixedService(0)
	s.Workers = [slackgate.NumPaths]int{slackgate.Paid: 2, slackgate.Free: 2}
	paidOnly := [2]slackgate.Path{slackgate.Paid, slackgate.Reject}
	w := Workload{Name: "two at once", Slices: 1, Make: func(uint64) []Arrival {
		jobs := []Arrival{articleJob(0), articleJob(200)}
		jobs[0].Prefer, jobs[1].Prefer = paidOnly, paidOnly
		return jobs
	}}
	seen := map[int64]int{}
	for seed := uint64(1); seed <= 20; seed++ {
		one, _, err := replaySharded(w, s, Predictive, Sharding{Shards: 2, Choices: 1}, seed)
		if err != nil {
			t.Fatal(err)
		}
		// In one shard the second waits 1000 ms beside an idle slot; else none.
		seen[one.IdleWhileWaitingMS]++
		two, jobs, err := replaySharded(w, s, Predictive, Sharding{Shards: 2, Choices: 2}, seed)
		if err != nil || two.IdleWhileWaitingMS != 0 || jobs[1].ClaimedAtMS != 200 {
			t.Errorf("seed %d: the better of two: %+v, %+v, %v", seed, two, jobs[1], err)
		}
	}
	if len(seen) != 2 || seen[0] == 0 || seen[1000] == 0 {
		t.Errorf("idle slot milliseconds by seed: %v, want 0 and 1000", seen)
	}
}

func TestShardingThatCannotBe(t *testing.T) {
	w, s := small(24, 45)
	for want, over := range map[string]Sharding{
		"0 shards":                          {0, 1, 0},
		"65 shards":                         {65, 1, 0},
		"0 choices":                         {2, 0, 0},
		"3 choices":                         {2, 3, 0},
		"-1 ms":                             {2, 2, -1},
		"4 workers, fewer than 5 shards":    {5, 2, 0},
		"the free pool has 4 workers, fewe": {8, 2, 0},
	} {
		if _, _, err := replaySharded(w, s, Predictive, over, 1); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", over, err)
		}
		sc := Scenario{w, s, []Policy{Predictive}}
		if err := sc.ShardRows(1, []Sharding{{1, 1, 0}, over}, goOn, func(ShardRow) error { t.Error("a row"); return nil }); err == nil {
			t.Errorf("%+v: no error", over)
		}
	}
}

func TestWholeTrace(t *testing.T) {
	requests := trace.AzureCode()
	jobs := WholeTraceWorkload("code", requests, 128).Make(7)
	if len(jobs) != len(requests) || jobs[0].AtMS != 0 {
		t.Fatalf("%d jobs, the first at %d", len(jobs), jobs[0].AtMS)
	}
	for i := 1; i < len(jobs); i++ {
		if jobs[i].AtMS < jobs[i-1].AtMS {
			t.Fatalf("job %d arrives before the one before it", i)
		}
	}
	if at, want := jobs[len(jobs)-1].AtMS, int64(len(requests))*1000/128; at < want-1 || at > want {
		t.Errorf("the last job arrives at %d, want %d", at, want)
	}
}
