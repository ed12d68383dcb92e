package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/labstack/echo/v4"

	"leeway/broker"
	"leeway/broker/admission"
	"leeway/broker/wire"
	"leeway/slackgate"
)

// batchWindow is how many lines of a batch are on their way at once; the
// reader waits for their verdicts beyond that. What they weigh over all connections
// is [memory]'s to bound.
const batchWindow = 128

// inFlight is a line on its way: offered to the gate, known from before, or
// wrong. A blank line is none of these.
type inFlight struct {
	line     int
	customID string
	offered  *admission.Offered // of a wrong line: to be counted
	hold     *hold              // of what is offered
	known    *broker.Verdict    // of the job that the line became before
	err      error
}

// run is one request's lines of a batch.
type run struct {
	*Server
	c     echo.Context
	batch string
	n     int64
	// said are the lines without jobs that the batch does not list yet, and
	// told when it last heard of this run.
	said []broker.BatchLine
	told time.Time
	kept int // said so far

	receivedAt time.Time // of the request
}

// submitBatch takes NDJSON and answers one verdict a line, in order. A bad line gets
// its error and the others stand. Blank lines are counted and skipped.
func (s *Server) submitBatch(c echo.Context) error {
	key, err := idempotencyKey(c.Request().Header)
	if err != nil {
		return err
	}
	id := s.Admitter.PlaceBatch(batchID(callerOf(c).name, key), callerOf(c).name, key)
	return s.takeLines(c, id, false)
}

// submitToBatch takes more lines under a batch on record. A line that became a job
// there keeps it; one that was refused is a new offer.
func (s *Server) submitToBatch(c echo.Context) error {
	var b *broker.Batch
	if err := s.reading(c, func() (err error) { b, err = s.batchOf(c); return err }); err != nil {
		return err
	}
	return s.takeLines(c, b.ID, true)
}

// batchID names a batch: the same for the same key of a producer, so that one
// whose answer was lost can be sent again.
func batchID(producer, key string) string {
	if key == "" {
		return uuid.Must(uuid.NewV7()).String()
	}
	sum := sha256.Sum256([]byte("batch\x00" + producer + "\x00" + key))
	return hex.EncodeToString(sum[:16])
}

func (s *Server) takeLines(c echo.Context, id string, again bool) error {
	ctx, receivedAt := c.Request().Context(), time.Now()
	if err := wantMedia(c.Request(), "application/x-ndjson", "application/jsonl"); err != nil {
		return err
	}
	// What the connection itself needs.
	floor := s.memory.hold(c)
	if !floor.take(ctx, perByte*readBuffer, bodyMemoryWait) {
		return errBusy
	}
	defer floor.release()
	var n int64
	if err := s.reading(c, func() (err error) {
		n, err = s.Store.OpenBatch(ctx, id, callerOf(c).name, again, s.Config().Limits.BatchLines)
		return err
	}); err != nil {
		return err
	}
	r := &run{Server: s, c: c, batch: id, n: n, told: time.Now(), receivedAt: receivedAt}
	w := c.Response()
	// Reading goes on while verdicts are written, or wait.
	if err := http.NewResponseController(w).EnableFullDuplex(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	w.Header().Set(wire.HeaderBatchID, id)
	w.Header().Set("Location", "/v1/batches/"+id)
	policyHeader(w.Header(), s.Config().Quota(callerOf(c).name))
	out := s.openOutbox(c)
	defer out.close()

	lines := make(chan inFlight, batchWindow)
	go s.Background.Guard("batch reader", func() {
		defer close(lines)
		r.read(lines)
	})
	r.answer(ctx, lines, out)
	return nil
}

// answer writes the verdicts in order. When the producer has left, what was
// offered is still decided, and listed.
func (r *run) answer(ctx context.Context, lines <-chan inFlight, to *outbox) {
	var gone error
	for l := range lines {
		out := l.verdict(ctx)
		if out.Error != nil && out.Error.Reason != string(slackgate.ReasonRate) {
			r.note(out)
		}
		if gone == nil {
			gone = to.send(out)
		}
		if len(r.said) > 0 && len(lines) == 0 || len(r.said) >= batchWindow || time.Since(r.told) > broker.BatchReceiving/4 {
			r.list(ctx, false)
		}
	}
	for tries := 1; !r.list(ctx, true) && tries < lastListTries; tries++ {
		time.Sleep(time.Second)
	}
	if len(r.said) > 0 {
		r.Log.Error("verdicts of a batch are not on record", "batch_id", r.batch, "lines", len(r.said))
	}
}

const (
	// mostSaid bounds the lines that wait to be listed while the store is away.
	mostSaid = 8 * batchWindow
	// MostKept is of how many lines of a request that became no jobs the record
	// keeps what was said.
	MostKept = 10_000
	// lastListTries is how often the last of them are offered to the store.
	lastListTries = 3
)

// note keeps what was said to a line that became no job.
func (r *run) note(out *wire.BatchLine) {
	if len(r.said) >= mostSaid || r.kept >= MostKept {
		return // the verdict was told
	}
	r.kept++
	said, err := json.Marshal(out)
	if err != nil {
		r.Log.Error("verdict of a batch not kept", "batch_id", r.batch, "error", err)
		return
	}
	at := broker.LineAt(r.n, out.Line)
	r.said = append(r.said, broker.BatchLine{Name: broker.LineName(out.CustomID, at), At: at, Reason: out.Error.Reason, Said: said})
}

// list puts the noted lines on record. It reports whether none is left.
func (r *run) list(ctx context.Context, last bool) bool {
	ctx = context.WithoutCancel(ctx)
	r.told = time.Now()
	for {
		n := min(len(r.said), broker.MaxLines)
		if err := r.Store.SetLines(ctx, r.batch, last && n == len(r.said), r.said[:n]...); err != nil {
			r.Log.Warn("verdicts of a batch not put on record yet", "batch_id", r.batch, "lines", len(r.said), "error", err)
			return false
		}
		if r.said = r.said[n:]; len(r.said) == 0 {
			return true
		}
	}
}

// verdict waits for what the gate says of the line.
func (l *inFlight) verdict(ctx context.Context) *wire.BatchLine {
	out := &wire.BatchLine{Line: l.line, CustomID: l.customID, Status: http.StatusOK}
	v, err := l.known, l.err
	if l.offered != nil {
		said, waited := l.offered.Wait(ctx)
		l.hold.release() // the text is the store's by now, or nobody's
		switch v = &said; {
		case l.err != nil:
			err = wrongOr(&said, l.err)
		case !v.Admitted():
			err = notAdmitted(v, waited)
		case !v.Repeated:
			out.Status = http.StatusAccepted
		}
	}
	if err != nil {
		if errors.Is(err, broker.ErrKeyConflict) { // a line has no other key
			err = fieldProblem(http.StatusConflict, wire.ReasonKeyConflict, "custom_id", "custom_id: another line of the batch has it, and another body")
		}
		out.Error = asProblem(err)
		out.Status, out.RetryAfterMS = out.Error.Status, out.Error.RetryAfterMS
	} else {
		out.Verdict = wire.NewVerdict(v)
	}
	return out
}

const readBuffer = 64 << 10

var lineReaders = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, readBuffer) }}

// read offers a run's lines in order. It ends with the body, with the first
// line past the limit, or when the producer has gone.
func (r *run) read(lines chan<- inFlight) {
	req := r.c.Request()
	who := callerOf(r.c)
	limit, most := int(r.Config().LineBytes(who.name)), r.Config().LinesLimit(who.name)
	in, _ := lineReaders.Get().(*bufio.Reader)
	body := &arrivals{Reader: req.Body, at: r.receivedAt}
	in.Reset(body)
	defer func() {
		in.Reset(nil)
		lineReaders.Put(in)
	}()
	blank := false // was the line before
	for n := 1; req.Context().Err() == nil; n++ {
		// Whoever sends lines need not read verdicts yet.
		if !blank && setDeadline(r.c, lineWithin, writeWithin) != nil {
			return
		}
		_, _ = in.Peek(1) // what is wrong with the body shows below, too
		receivedAt := body.at
		l := inFlight{line: n, hold: r.memory.hold(r.c)}
		raw, err := readLine(in, limit, func(n int) error {
			if !l.hold.take(req.Context(), perByte*int64(n), lineMemoryWait) {
				return errBusy
			}
			return nil
		})
		blank = false
		refused := errors.Is(err, errLineTooLong) || errors.Is(err, errBusy)
		last := err != nil && !refused
		switch {
		case n > most && (len(raw) > 0 || err == nil || refused):
			last = true
			l.err = problem(http.StatusRequestEntityTooLarge, wire.ReasonTooLarge, "the batch has too many lines; this one and those after it were not read")
		case errors.Is(err, errLineTooLong):
			l.wrong(r, who.name, broker.Fieldf("body", "the line is longer than %d bytes", limit))
		case errors.Is(err, errBusy):
			l.err = errBusy
		case last && !errors.Is(err, io.EOF):
			// The connection is gone: a torn line is no submission.
		default:
			// A byte order mark may begin a file, and files may be put together.
			if raw = bytes.TrimSpace(bytes.TrimPrefix(raw, []byte("\ufeff"))); len(raw) > 0 {
				r.offer(&l, raw, receivedAt)
			} else {
				blank = true
			}
			if last {
				clearReadDeadline(r.c)
			}
		}
		if l.offered == nil {
			l.hold.release()
		}
		if l.offered != nil || l.known != nil || l.err != nil {
			lines <- l
		}
		if last {
			return
		}
	}
}

// offer offers one line. Within its batch a line is named by its custom_id; one
// without is not named, and a new job each time.
func (r *run) offer(l *inFlight, raw []byte, receivedAt time.Time) {
	ctx := r.c.Request().Context()
	who := callerOf(r.c)
	sub, job, err := r.parse(ctx, who, raw, receivedAt)
	var key broker.IdempotencyKey
	if l.customID = customID(sub, raw); l.customID != "" {
		key = keyed(r.batch+"\x00"+l.customID, raw)
	}
	if err != nil {
		if v, ok := r.known(ctx, sub, key); ok {
			l.known = &v
		} else {
			l.wrong(r, producerOf(who, sub), err)
		}
		return
	}
	job.Key = key
	at := broker.LineAt(r.n, l.line)
	job.Place = broker.BatchPlace{Batch: r.batch, Line: broker.LineName(sub.CustomID, at), At: at}
	if l.err = r.Admitter.Place(job); l.err == nil {
		l.offered = new(r.Admitter.Offer(ctx, job))
	}
}

// customID is a line's own name, which also a line that is no submission may have
// where it can be read; empty for none that can be kept.
func customID(sub *submission, raw []byte) string {
	if sub == nil {
		sub = &submission{CustomID: customIDIn(raw)}
	}
	if len(sub.CustomID) > wire.MaxProducerBytes {
		return ""
	}
	return sub.CustomID
}

// arrivals is a body that knows since when what was read last has been here.
type arrivals struct {
	io.Reader
	at   time.Time // at first: of the request
	read bool
}

// Read reads on. What is there when it is called first came with the request,
// before the batch was opened.
func (a *arrivals) Read(p []byte) (int, error) {
	asked := time.Now()
	n, err := a.Reader.Read(p)
	if now := time.Now(); a.read || now.Sub(asked) > time.Millisecond {
		a.at = now
	}
	a.read = true
	return n, err
}

// wrong notes what is wrong with a line, and has it count.
func (l *inFlight) wrong(r *run, producer string, err error) {
	l.err = err
	l.offered = r.charge(r.c.Request().Context(), producer)
}

var errLineTooLong = errors.New("line too long")

// readLine reads up to the next newline; take is asked before bytes are kept. The
// line stands until r is read again. A line longer than limit, or one that take
// refuses, is read to its end, forgotten, and reported as errLineTooLong or with
// take's error; io.EOF may come with the last line.
func readLine(r *bufio.Reader, limit int, take func(n int) error) ([]byte, error) {
	var line []byte
	var refused error
	for {
		part, err := r.ReadSlice('\n')
		if refused == nil {
			if len(line)+len(part) > limit {
				refused = errLineTooLong
			} else {
				refused = take(len(part))
			}
		}
		switch {
		case refused != nil:
			line = nil
		case line == nil && !errors.Is(err, bufio.ErrBufferFull):
			line = part // whole in the reader's buffer
		default:
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case refused != nil && (err == nil || errors.Is(err, io.EOF)):
			return nil, refused
		}
		return line, err
	}
}
