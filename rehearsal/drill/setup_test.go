package drill

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"testing/synctest"

	"leeway/broker/config"
	"leeway/slackgate"
)

// A setup's file makes the same pools, class and gate as the embedded Leeway
// has, for every drill.
func TestSetupIsWhatTheEmbeddedOneHas(t *testing.T) {
	for _, p := range Plans() {
		t.Run(p.Name, func(t *testing.T) {
			var doc bytes.Buffer
			if err := p.WriteSetup(&doc); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "leeway.yaml")
			if err := os.WriteFile(file, doc.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := config.Load(file, nil)
			if err != nil {
				t.Fatalf("%v in\n%s", err, &doc)
			}
			synctest.Test(t, func(t *testing.T) {
				e, err := StartEmbedded(p, true)
				if err != nil {
					t.Fatal(err)
				}
				want := e.stage.Config
				for _, path := range slackgate.Paths {
					for i := range want.Pool(path).Backends { // these are its own
						want.Pool(path).Backends[i].URL, want.Pool(path).Backends[i].Model = got.Pool(path).Backends[i].URL, got.Pool(path).Backends[i].Model
					}
				}
				for _, row := range []struct {
					what      string
					want, got any
				}{
					{"pools", want.Pools, got.Pools}, {"classes", want.Classes, got.Classes},
					{"gate", want.Gate, got.Gate}, {"redis timeout", want.Redis.TimeoutMS, got.Redis.TimeoutMS},
				} {
					if !reflect.DeepEqual(row.want, row.got) {
						t.Errorf("%s: embedded %+v\nsetup %+v", row.what, row.want, row.got)
					}
				}
				if err := e.Stop(context.Background()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
