package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os/user"
	"strconv"
	"strings"

	"leeway/broker/client"
)

// apiFlags say which API to talk to.
type apiFlags struct {
	API string `env:"LEEWAY_API" default:"http://127.0.0.1:8080" help:"Address of the admission API."`
	Key string `env:"LEEWAY_KEY" help:"Key, where the API wants one."`
}

func (f *apiFlags) client() *client.Client {
	return &client.Client{Base: strings.TrimSuffix(f.API, "/"), Key: f.Key}
}

// query is the parameters that have a value.
func query(params map[string]string) url.Values {
	q := url.Values{}
	for name, v := range params {
		if v != "" {
			q.Set(name, v)
		}
	}
	return q
}

// listFlags are those of the lists of batches and jobs.
type listFlags struct {
	Producer string `help:"Only this producer's; with a producer's key they are its own anyway."`
	Limit    int    `default:"50" help:"How many; 1..200."`
	JSON     bool   `help:"As the API gives it."`
}

// query is what the flags ask for, with the filters of one list.
func (f *listFlags) query(filters map[string]string) url.Values {
	q := query(filters)
	q.Set("limit", strconv.Itoa(f.Limit))
	if f.Producer != "" {
		q.Set("producer", f.Producer)
	}
	return q
}

// words are what an operator says of an action.
type words struct {
	Reason string `required:"" help:"Why: it stands in the audit trail."`
	By     string `help:"Who. Defaults to the user of this machine."`
}

func (w *words) by() string {
	if w.By != "" {
		return w.By
	}
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return ""
}

// get asks for a page that is not the API's. The body of the answer must be
// closed; an answer other than 2xx is an error.
func get(ctx context.Context, address string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{}).Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%s answered %s", address, resp.Status)
	}
	return resp, nil
}
