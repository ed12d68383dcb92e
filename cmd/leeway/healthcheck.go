package main

import (
	"context"
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
	resp, err := get(ctx, c.URL)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
