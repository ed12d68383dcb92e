package httpapi

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net"
	"net/http"
	"strings"

	"github.com/labstack/echo/v4"

	"leeway/broker/config"
	"leeway/broker/wire"
)

// role is what a key allows.
type role int

const (
	roleProducer role = iota + 1 // submit, and see one's own jobs
	roleOnCall                   // everything
)

// caller is who a request's key belongs to.
type caller struct {
	name string
	role role
}

const callerKey = "leeway.caller"

// allow lets requests through whose key has the role. Without any key
// configured everybody may do everything: the process then listens on loopback
// only, unless told otherwise, and answers to its own name alone.
func (s *Server) allow(need role) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			access := &s.Config().Access
			if !access.Keyed() {
				if !access.Open && !ownHost(c.Request().Host) {
					return problem(http.StatusForbidden, wire.ReasonForbidden, "without keys this API is reached as localhost alone: another name may be a web page's")
				}
				return next(c)
			}
			who, ok := identify(access, c.Request().Header.Get("Authorization"))
			if !ok {
				c.Response().Header().Set("WWW-Authenticate", "Bearer")
				return problem(http.StatusUnauthorized, wire.ReasonUnauthorized, "want Authorization: Bearer and a key that is known here")
			}
			if who.role < need {
				return problem(http.StatusForbidden, wire.ReasonForbidden, "a producer's key does not open this route")
			}
			c.Set(callerKey, who)
			return next(c)
		}
	}
}

// ownHost reports whether a request was sent to this machine by its own name or
// address. A web page can have a browser send to loopback under the page's name,
// and read what comes back.
func ownHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return host == "" || config.LoopbackHost(strings.Trim(host, "[]"))
}

// identify finds whose key it is. All keys are compared, each in constant
// time, so that the time taken tells nothing.
func identify(a *config.Access, header string) (caller, bool) {
	key, ok := strings.CutPrefix(header, "Bearer ")
	sum := sha256.Sum256([]byte(key))
	got := []byte(hex.EncodeToString(sum[:]))
	var who caller
	for _, k := range a.Producers {
		if subtle.ConstantTimeCompare(got, []byte(k.KeySHA256)) == 1 {
			who = caller{k.Name, roleProducer}
		}
	}
	for _, k := range a.OnCall {
		if subtle.ConstantTimeCompare(got, []byte(k.KeySHA256)) == 1 {
			who = caller{k.Name, roleOnCall}
		}
	}
	return who, ok && who.role != 0
}

// callerOf is who the request's key belongs to; the zero value without keys.
func callerOf(c echo.Context) caller {
	who, _ := c.Get(callerKey).(caller)
	return who
}

// actor is who acts: the key's owner, with the name they gave beside it.
func actor(c echo.Context, by string) string {
	who := callerOf(c).name
	switch {
	case who == "":
		return by
	case by == "" || by == who:
		return who
	}
	return who + " (" + by + ")"
}

// isTheirs reports whether the caller may see what is a producer's: a producer
// sees its own.
func isTheirs(c echo.Context, producer string) bool {
	who := callerOf(c)
	return who.role != roleProducer || producer == who.name
}
