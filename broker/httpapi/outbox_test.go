package httpapi

import (
	"context"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// slowReader is a client that takes in nothing until it begins to.
type slowReader struct {
	*httptest.ResponseRecorder
	begins chan struct{}
	gone   bool
}

func (r *slowReader) Write(b []byte) (int, error) {
	<-r.begins
	if r.gone {
		return 0, errors.New("gone")
	}
	return r.ResponseRecorder.Write(b)
}

// What waits for its reader is memory of the producer's, is packed, and comes whole
// and in order; without more memory its writer waits.
func TestVerdictsWait(t *testing.T) {
	const lines = 3000
	for _, gone := range []bool{false, true} {
		inAPI(t, "limits: {text_bytes: 1000, in_flight_bytes: 550000}", func(a *api) {
			r := &slowReader{httptest.NewRecorder(), make(chan struct{}), gone}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			o := a.openOutbox(a.echo.NewContext(httptest.NewRequestWithContext(ctx, http.MethodPost, "/", nil), r))
			sent, random, text := 0, rand.NewChaCha8([32]byte{}), make([]byte, 250)
			go func() {
				for n := range lines {
					_, _ = random.Read(text)
					if o.send(strconv.Itoa(n)+"x"+hex.EncodeToString(text)) != nil {
						break
					}
					sent++
				}
				o.close()
			}()
			time.Sleep(time.Hour)
			if held := a.cfg.Limits.InFlightBytes - a.memory.free; held == 0 || held > a.cfg.Limits.InFlightBytes/2 || sent == lines {
				t.Errorf("%d bytes are held for %d lines", held, sent)
			}
			close(r.begins)
			<-o.done
			synctest.Wait()
			if a.memory.free != a.cfg.Limits.InFlightBytes {
				t.Errorf("%d bytes are still held", a.cfg.Limits.InFlightBytes-a.memory.free)
			}
			if gone {
				return
			}
			got := strings.Split(strings.TrimSpace(r.Body.String()), "\n")
			for n, line := range got {
				if !strings.HasPrefix(line, `"`+strconv.Itoa(n)+"x") {
					t.Fatalf("line %d is %s", n, line)
				}
			}
			if len(got) != lines {
				t.Errorf("%d lines", len(got))
			}
		})
	}
}
