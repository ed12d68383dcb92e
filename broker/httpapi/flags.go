package httpapi

import (
	"cmp"
	"net/http"
	"time"

	"github.com/labstack/echo/v4"

	"leeway/broker"
	"leeway/broker/config"
	"leeway/broker/flag"
	"leeway/broker/wire"
	"leeway/slackgate"
)

func (s *Server) flagView(t *flag.Table, n flag.Name, class string, nowMS int64) wire.FlagView {
	if e := t.Get(n, class, nowMS); e != nil {
		return wire.FlagView{
			Name: n, Class: e.Class, Value: e.Value, Source: "flag", By: e.By, Reason: e.Reason, AtMS: e.AtMS, UntilAtMS: e.UntilAtMS,
		}
	}
	start := s.StartValues()
	if start.FreeCutMS == nil && start.Policy == slackgate.Seed {
		start.FreeCutMS = new(int64(config.SeedFreeQueueAgeCutMS))
	}
	return wire.FlagView{Name: n, Value: start.Text(n), Source: "config"}
}

// listFlags shows every flag, and beside it the values for single classes.
func (s *Server) listFlags(c echo.Context) error {
	t, err := s.Store.Flags(c.Request().Context())
	if err != nil {
		return err
	}
	now := s.Store.NowMS()
	out := make([]wire.FlagView, 0, len(flag.Names))
	for _, n := range flag.Names {
		out = append(out, s.flagView(t, n, "", now))
	}
	for _, e := range t.Live(now) {
		if e.Class != "" {
			out = append(out, s.flagView(t, e.Name, e.Class, now))
		}
	}
	return c.JSON(http.StatusOK, map[string]any{"flags": out, "now_ms": now})
}

func (s *Server) getFlag(c echo.Context) error {
	n, class, err := s.flagOf(c)
	if err != nil {
		return err
	}
	t, err := s.Store.Flags(c.Request().Context())
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, s.flagView(t, n, class, s.Store.NowMS()))
}

// flagOf reads the flag's name from the route and ?class=.
func (s *Server) flagOf(c echo.Context) (flag.Name, string, error) {
	n, err := flag.Parse(c.Param("name"))
	if err != nil {
		return "", "", problem(http.StatusNotFound, wire.ReasonNotFound, err.Error())
	}
	class := c.QueryParam("class")
	return n, class, s.knownClass(class)
}

func (s *Server) knownClass(class string) error {
	if class == "" {
		return nil
	}
	if _, ok := s.Config().Classes[class]; !ok {
		return broker.Fieldf("class", "no such class")
	}
	return nil
}

func (s *Server) setFlag(c echo.Context) error {
	n, _, err := s.flagOf(c)
	if err != nil {
		return err
	}
	f, err := readJSON[wire.FlagChange](c)
	switch {
	case err != nil:
		return err
	case f.Value == "":
		return broker.Fieldf("value", "is missing")
	case f.ForMS != 0 && (f.ForMS < flag.MinExpiryMS || f.ForMS > flag.MaxExpiryMS):
		return broker.Fieldf("for_ms", "is outside %d..%d", flag.MinExpiryMS, int64(flag.MaxExpiryMS))
	}
	if err := cmp.Or(n.Check(f.Value), checkWords(f.Reason, f.By), s.knownClass(f.Class)); err != nil {
		return err
	}
	return s.changeFlag(c, n, f)
}

// clearFlag returns a flag to its value from configuration.
func (s *Server) clearFlag(c echo.Context) error {
	n, class, err := s.flagOf(c)
	if err != nil {
		return err
	}
	reason, by := c.QueryParam("reason"), c.QueryParam("by")
	if err := checkWords(reason, by); err != nil {
		return err
	}
	return s.changeFlag(c, n, &wire.FlagChange{Class: class, By: by, Reason: reason})
}

// changeFlag makes a change; one without a value clears the flag.
func (s *Server) changeFlag(c echo.Context, n flag.Name, f *wire.FlagChange) error {
	ctx := c.Request().Context()
	by := actor(c, f.By)
	if err := s.Store.SetFlag(ctx, n, f.Class, f.Value, by, f.Reason, time.Duration(f.ForMS)*time.Millisecond); err != nil {
		return err
	}
	s.Log.Warn("flag changed", "flag", string(n), "class", f.Class, "value", f.Value, "by", by, "reason", f.Reason, "for_ms", f.ForMS)
	t, err := s.Store.Flags(ctx)
	if err != nil {
		return err
	}
	out := wire.FlagAnswer{Flag: s.flagView(t, n, f.Class, s.Store.NowMS())}
	if v, _, err := s.dryRun(ctx, f.Class); err == nil {
		out.Gate = wire.NewVerdict(&v)
	}
	return c.JSON(http.StatusOK, out)
}

// audit shows the newest changes of flags, newest first.
func (s *Server) audit(c echo.Context) error {
	q := newQuery(c, "cursor", "limit")
	limit := int(q.int("limit", rowsByDefault, 1, wire.MaxRows))
	if q.err != nil {
		return q.err
	}
	changes, err := s.Store.Audit(c.Request().Context(), limit)
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, map[string]any{"changes": changes})
}

// checkWords checks the words an operator gives for an action.
func checkWords(reason, by string) error {
	if reason == "" || len(reason) > flag.MaxReason {
		return broker.Fieldf("reason", "must be there and at most %d bytes: it stands in the audit trail", flag.MaxReason)
	}
	if len(by) > wire.MaxProducerBytes {
		return broker.Fieldf("by", "is longer than %d bytes", wire.MaxProducerBytes)
	}
	return nil
}
