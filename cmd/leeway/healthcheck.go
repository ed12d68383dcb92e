package main

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// healthcheckCmd lets a container image without a shell check itself.
type healthcheckCmd struct {
	URL string `arg:"" help:"For example http://127.0.0.1:8080/livez"`
}

// Run returns an error unless the URL answers 2xx within two seconds.
func (c *healthcheckCmd) Run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.URL, nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{}).Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s answered %s", c.URL, resp.Status)
	}
	return nil
}
