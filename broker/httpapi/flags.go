package httpapi

import (
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/labstack/echo/v4"

	"leeway/broker"
	"leeway/broker/config"
	"leeway/broker/flag"
	"leeway/broker/wire"
	"leeway/slackgate"
)

// start is a flag's value from configuration.
func (s *Server) start(n flag.Name) string {
	v := s.StartValues()
	bit := func(b bool) string {
		if b {
			return "1"
		}
		return "0"
	}
	switch n {
	case flag.AdmitPaid:
		return bit(v.AdmitPaid)
	case flag.AdmitFree:
		return bit(v.AdmitFree)
	case flag.Fallback:
		return bit(v.Fallback)
	case flag.Reserve:
		return strconv.FormatInt(v.ReserveMS, 10)
	case flag.GatePolicy:
		return v.Policy.String()
	case flag.FreeCut:
		if v.FreeCutMS != nil {
			return strconv.FormatInt(*v.FreeCutMS, 10)
		}
		if v.Policy == slackgate.Seed {
			return strconv.Itoa(config.SeedFreeQueueAgeCutMS)
		}
	}
	return "unset"
}

func (s *Server) flagView(t *flag.Table, n flag.Name, class string, nowMS int64) wire.FlagView {
	if e := t.Get(n, class, nowMS); e != nil {
		return wire.FlagView{
			Name: n, Class: e.Class, Value: e.Value, Source: "flag", By: e.By, Reason: e.Reason, AtMS: e.AtMS, UntilMS: e.UntilMS,
		}
	}
	return wire.FlagView{Name: n, Value: s.start(n), Source: "config"}
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

func (s *Server) putFlag(c echo.Context) error {
	n, _, err := s.flagOf(c)
	if err != nil {
		return err
	}
	var f wire.FlagChange
	if err := readJSON(c, &f); err != nil {
		return err
	}
	switch {
	case f.Value == "":
		return broker.Fieldf("value", "is missing")
	case f.ForMS != 0 && (f.ForMS < flag.MinExpiryMS || f.ForMS > flag.MaxExpiryMS):
		return broker.Fieldf("for_ms", "is outside %d..%d", flag.MinExpiryMS, int64(flag.MaxExpiryMS))
	}
	if err := firstError(n.Check(f.Value), checkWords(f.Reason, f.By), s.knownClass(f.Class)); err != nil {
		return err
	}
	return s.changeFlag(c, n, f.Class, f.Value, f.By, f.Reason, time.Duration(f.ForMS)*time.Millisecond)
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
	return s.changeFlag(c, n, class, "", by, reason, 0)
}

func (s *Server) changeFlag(c echo.Context, n flag.Name, class, value, by, reason string, hold time.Duration) error {
	ctx := c.Request().Context()
	by = actor(c, by)
	if err := s.Store.SetFlag(ctx, n, class, value, by, reason, hold); err != nil {
		return err
	}
	s.Log.Warn("flag changed", "flag", string(n), "class", class, "value", value, "by", by, "reason", reason, "for_ms", hold.Milliseconds())
	t, err := s.Store.Flags(ctx)
	if err != nil {
		return err
	}
	out := wire.FlagAnswer{Flag: s.flagView(t, n, class, s.Store.NowMS())}
	if v, _, err := s.dryRunOf(ctx, class); err == nil {
		out.Gate = wire.NewVerdict(&v)
	}
	return c.JSON(http.StatusOK, out)
}

// audit shows the newest changes of flags, newest first.
func (s *Server) audit(c echo.Context) error {
	_, limit, err := pageParams(c)
	if err != nil {
		return err
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

// readJSON reads a small JSON body strictly.
func readJSON(c echo.Context, into any) error {
	if err := wantMedia(c.Request(), "application/json"); err != nil {
		return err
	}
	body, err := io.ReadAll(http.MaxBytesReader(c.Response(), c.Request().Body, 8<<10))
	if err != nil {
		return bodyError(err)
	}
	bodyRead(c)
	if err := json.Unmarshal(body, into, json.RejectUnknownMembers(true)); err != nil {
		return inputError(err)
	}
	return nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
