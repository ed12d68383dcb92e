package httpapi

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"leeway/broker"
	"leeway/broker/admission"
)

// batchWindow is how many lines of a batch are on their way at once; the
// reader waits for the writer beyond that, so memory is bounded whatever the
// batch's size.
const batchWindow = 128

// lineOverhead is what a line may be longer than twice the text limit: the
// other fields and JSON's escapes.
const lineOverhead = 64 << 10

// batchLine is the verdict on one line of a batch.
type batchLine struct {
	Line     int    `json:"line"`
	CustomID string `json:"custom_id,omitempty"`
	Status   int    `json:"status"`
	*Verdict
	Error *Problem `json:"error,omitempty"`
}

// inFlight is a line on its way: offered to the gate, or wrong.
type inFlight struct {
	line     int
	customID string
	offered  *admission.Offered
	err      error
}

// batch takes NDJSON and answers one verdict a line, in order. A bad line gets
// its error and the others stand. Blank lines are counted and skipped.
func (s *Server) batch(c echo.Context) error {
	if err := wantMedia(c.Request(), "application/x-ndjson", "application/jsonl"); err != nil {
		return err
	}
	key, err := idempotencyKey(c.Request().Header)
	if err != nil {
		return err
	}
	defer atLeisure(c)
	w := c.Response()
	// Reading goes on while verdicts are written.
	if err := http.NewResponseController(w).EnableFullDuplex(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)

	ctx := c.Request().Context()
	lines := make(chan inFlight, batchWindow)
	go s.background.Guard("batch reader", func() {
		defer close(lines)
		s.readBatch(c, key, lines)
	})
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	var gone error
	for l := range lines {
		out := batchLine{Line: l.line, CustomID: l.customID, Status: http.StatusAccepted}
		if l.offered != nil {
			v, err := l.offered.Wait(ctx)
			switch {
			case !v.Admitted():
				l.err = notAdmitted(&v, err)
			case v.Repeated:
				out.Status = http.StatusOK
				fallthrough
			default:
				out.Verdict = verdict(&v)
			}
		}
		if l.err != nil {
			out.Error = asProblem(l.err)
			out.Status = out.Error.Status
		}
		if gone != nil {
			continue // the producer has left: what was offered is still decided
		}
		if gone = patience(c, 0, writeWithin); gone != nil {
			continue
		}
		if gone = enc.Encode(out); gone == nil && len(lines) == 0 {
			w.Flush()
		}
	}
	return nil
}

// readBatch offers a batch's lines in order. It ends with the body, with the
// first line past the limit, or when the producer has gone.
func (s *Server) readBatch(c echo.Context, key string, lines chan<- inFlight) {
	req, who := c.Request(), callerOf(c)
	limit := 2*int(s.Config().Limits.TextBytes) + lineOverhead
	r := bufio.NewReaderSize(req.Body, 64<<10)
	for n := 1; req.Context().Err() == nil; n++ {
		if patience(c, lineWithin, 0) != nil {
			return
		}
		raw, err := readLine(r, limit)
		if n > s.Config().Limits.BatchLines && (len(raw) > 0 || err == nil || errors.Is(err, errLineTooLong)) {
			lines <- inFlight{line: n, err: problem(http.StatusRequestEntityTooLarge, ReasonTooLarge, "the batch has too many lines; this one and those after it were not read")}
			return
		}
		switch {
		case errors.Is(err, errLineTooLong):
			lines <- inFlight{line: n, err: broker.Fieldf("body", "the line is longer than %d bytes", limit)}
			continue
		case err != nil && !errors.Is(err, io.EOF):
			return // the connection is gone: a torn line is no submission
		}
		if raw = bytes.TrimSpace(raw); len(raw) > 0 {
			lines <- s.offerLine(req, who, key, n, raw)
		}
		if err != nil {
			return
		}
	}
}

// offerLine offers one line. Under the batch's idempotency key each line is
// named by its custom_id; a line without one is not named.
func (s *Server) offerLine(req *http.Request, who caller, key string, n int, raw []byte) inFlight {
	sub, job, err := s.parseBoth(req.Context(), who, raw, time.Now())
	if err != nil {
		return inFlight{line: n, err: err}
	}
	if key != "" && sub.CustomID != "" {
		job.Key = keyed(key+"\x00"+sub.CustomID, raw)
	}
	o := s.Admitter.Offer(req.Context(), job)
	return inFlight{line: n, customID: sub.CustomID, offered: &o}
}

var errLineTooLong = errors.New("line too long")

// readLine reads up to the next newline. A line longer than limit is read to
// its end, forgotten, and reported as errLineTooLong; io.EOF may come with the
// last line.
func readLine(r *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	tooLong := false
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > limit {
			tooLong, line = true, nil
		}
		if !tooLong {
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case tooLong && (err == nil || errors.Is(err, io.EOF)):
			return nil, errLineTooLong
		}
		return line, err
	}
}
