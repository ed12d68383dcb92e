//go:build server && accept

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"leeway/broker/config"
)

// TestAcceptKnee finds the article's knee of eight on a live lab backend, within
// one step, in three runs of three.
func TestAcceptKnee(t *testing.T) {
	base, _ := startLab(t, labCmd{
		Addr: "127.0.0.1:0", Control: "127.0.0.1:0", Model: "lab-paid", Profile: "load:1=189,8=433,32=474", Tail: "0", Queue: 4096,
	})
	for n := range 3 {
		t.Run(fmt.Sprint(n+1), func(t *testing.T) {
			var out, errs bytes.Buffer
			if code := run([]string{"knee", "--url", base, "--model", "lab-paid", "--tokens", "16", "--json"}, &out, &errs); code != 0 {
				t.Fatalf("exit %d: %s%s", code, &out, &errs)
			}
			var k config.MeasuredKnee
			if err := json.Unmarshal(out.Bytes(), &k); err != nil {
				t.Fatal(err)
			}
			t.Logf("%d calls at once: %s", k.Limit, k.Steps)
			if k.Limit < 4 || k.Limit > 16 {
				t.Errorf("found %d; it is 8", k.Limit)
			}
		})
	}
}
