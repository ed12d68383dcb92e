package httpapi

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/labstack/echo/v4"

	"leeway/broker"
	"leeway/broker/wire"
	"leeway/slackgate"
)

// What ?verdict= of a batch's lines may say.
const (
	verdictAdmitted = "admitted"
	verdictRefused  = "refused"
	verdictInvalid  = "invalid"
)

// batchLines reads lines in their order, with verdicts and outcomes. With a
// filter a page may hold fewer lines than asked for, even none, and still have a
// next one.
func (s *Server) batchLines(c echo.Context) error {
	q := newQuery(c, "cursor", "limit", "verdict", "outcome")
	after, limit := q.int("cursor", 0, 0, maxInstantMS), q.limit()
	said := oneOf(q, "verdict", verdictAdmitted, verdictRefused, verdictInvalid)
	outcome := oneOf(q, "outcome", broker.Outcomes[:]...)
	if q.err != nil {
		return q.err
	}
	b, err := s.batchOf(c)
	if err != nil {
		return err
	}
	lines, err := s.Store.Lines(c.Request().Context(), b.ID, after, limit, true)
	if err != nil {
		return err
	}
	page := wire.LinePage{Lines: []*wire.LineView{}}
	for i := range lines {
		v, err := viewLine(&lines[i])
		if err != nil {
			return err
		}
		if (said == "" || said == verdictKind(v)) && (outcome == "" || v.Job != nil && v.Job.Outcome == outcome) {
			page.Lines = append(page.Lines, v)
		}
	}
	if len(lines) == limit {
		page.Next = strconv.FormatInt(lines[len(lines)-1].At, 10)
	}
	return c.JSON(http.StatusOK, page)
}

// viewLine is a line on record as it goes over the wire.
func viewLine(l *broker.BatchLine) (*wire.LineView, error) {
	v := &wire.LineView{Job: l.Job}
	if l.JobID == "" && l.Said != nil {
		if err := json.Unmarshal(l.Said, &v.BatchLine); err != nil {
			return nil, err
		}
	} else {
		v.Status = http.StatusAccepted
		v.Verdict = &wire.Verdict{JobID: l.JobID, Path: l.Path}
		if l.Job != nil {
			v.Verdict = wire.RecordedVerdict(l.Job)
		}
		v.Path, v.Reason = l.Path, slackgate.Reason(l.Path.String())
	}
	v.Line, v.CustomID = broker.LineOf(l.At), broker.LineCustomID(l.Name)
	return v, nil
}

// verdictKind is the kind of verdict that a line got.
func verdictKind(v *wire.LineView) string {
	switch {
	case v.Error == nil:
		return verdictAdmitted
	case gateSays(v.Error.Reason):
		return verdictRefused
	}
	return verdictInvalid
}

// resultsAtOnce is how many answers are read at once.
const resultsAtOnce = 50

// batchResults streams the lines whose jobs have ended, in that order, as
// NDJSON. When there is none after the cursor it waits as long as ?wait= says
// for the next.
func (s *Server) batchResults(c echo.Context) error {
	q := newQuery(c, "cursor", "wait", "outcome")
	cursor := q.int("cursor", 0, 0, maxInstantMS)
	outcome := oneOf(q, "outcome", broker.Outcomes[:]...)
	if q.err != nil {
		return q.err
	}
	wait, err := s.waitFor(q.Get("wait"))
	if err != nil {
		return err
	}
	release, err := s.holdWait(c, wait)
	if err != nil {
		return err
	}
	defer release()
	ctx, id := c.Request().Context(), c.Param("id")
	var lines []broker.BatchLine
	err = s.poll(c, wait, recheck/4, nil, func(bool) (bool, error) {
		b, err := s.batchOf(c)
		if err != nil {
			return false, err
		}
		over := isOver(s.progress(b)) // before the lines: what ends in between is among them
		lines, err = s.Store.EndedLines(ctx, id, cursor, resultsAtOnce)
		return over || len(lines) > 0, err
	})
	if err != nil {
		return err
	}
	out := openLines(c)
	for len(lines) > 0 {
		for i := range lines {
			cursor++
			l := &lines[i]
			if outcome != "" && (l.Job == nil || l.Job.Outcome != outcome) {
				continue
			}
			err := out.send(wire.ResultLine{Line: broker.LineOf(l.At), CustomID: broker.LineCustomID(l.Name), Job: l.Job, NextCursor: cursor})
			if err != nil {
				return errClientGone
			}
		}
		c.Response().Flush()
		if lines, err = s.Store.EndedLines(ctx, id, cursor, resultsAtOnce); err != nil {
			s.abort(c, err)
		}
	}
	return nil
}
