package config

import (
	"errors"
	"strconv"

	"github.com/caarlos0/env/v11"

	"leeway/broker"
)

// applyEnv sets the fields that have an env tag from environment variables, as
// os.Environ gives them. The names without LEEWAY_ are the articles'.
func (c *Config) applyEnv(environ []string) error {
	vars := env.ToMap(environ)
	known, err := env.GetFieldParams(c)
	if err != nil {
		return err
	}
	for _, f := range known {
		// One at a time, so that an error can name its variable.
		one := env.Options{Environment: map[string]string{f.Key: vars[f.Key]}}
		err := env.ParseWithOptions(c, one)
		if bad, ok := errors.AsType[env.ParseError](err); ok {
			err = bad.Err
		}
		if err != nil {
			return broker.Fieldf(f.Key, "%v", err)
		}
	}
	return c.applyDeadline(vars["DEADLINE_MS"])
}

// applyDeadline sets the default class's deadline.
func (c *Config) applyDeadline(value string) error {
	if value == "" {
		return nil
	}
	ms, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		return broker.Fieldf("DEADLINE_MS", "%v", err)
	}
	if ms < 1 {
		return broker.Fieldf("DEADLINE_MS", "must be at least 1")
	}
	if len(c.Classes) == 0 {
		c.Classes = Classes{c.DefaultClass: {}}
	}
	if cl, ok := c.Classes[c.DefaultClass]; ok { // else validation names what is missing
		cl.DeadlineMS = ms
		c.Classes[c.DefaultClass] = cl
	}
	return nil
}
