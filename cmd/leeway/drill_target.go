package main

import (
	"context"
	"errors"

	"leeway/rehearsal/drill"
)

// deploymentFlags say which deployment to drill, and what may be done to it.
type deploymentFlags struct {
	URL        string            `name:"api" aliases:"url" placeholder:"URL" help:"Drill the deployment whose API is there, instead of one in this process."`
	Key        string            `env:"LEEWAY_KEY" help:"With --api: an on-call key, where the API wants one."`
	Class      string            `help:"With --api: the class to submit to, and the one whose flags a drill sets. Else the default class, and flags for all."`
	LabControl map[string]string `mapsep:"," placeholder:"BACKEND=URL" help:"With --api: the control endpoint of a backend that is a lab. Faults go there and nowhere else. May be repeated."`
	WorkerPID  int               `name:"worker-pid" placeholder:"PID" help:"With --api: a worker of this machine that a drill may kill; what supervises it must start another."`
	RedisPID   int               `name:"redis-pid" placeholder:"PID" help:"With --api: the Redis of this machine, that a drill may stop for some seconds."`
	Remote     bool              `help:"With --api: drill what is not on this machine. The drill loads it, and its jobs cost what they generate."`
}

// open reads how the deployment stands. Close must be called.
func (f *deploymentFlags) open(ctx context.Context) (*drill.Deployment, error) {
	return drill.OpenDeployment(ctx, drill.DeploymentOptions{
		URL: f.URL, Key: f.Key, Class: f.Class, Controls: f.LabControl, WorkerPID: f.WorkerPID, RedisPID: f.RedisPID, Remote: f.Remote,
	})
}

// checkFlags refuses what does not go together.
func (c *drillRunCmd) checkFlags() error {
	switch {
	case c.URL == "" && (c.Class != "" || len(c.LabControl) > 0 || c.WorkerPID != 0 || c.RedisPID != 0 || c.Remote):
		return errors.New("--class, --lab-control, --worker-pid, --redis-pid and --remote are about a deployment: give its --api")
	case c.URL != "" && c.Simulate:
		return errors.New("--api and --simulate name two targets: leave one out")
	case c.URL != "" && (c.Policy != nil || c.NoRecheck || c.P95Percent != 100):
		return errors.New("--policy, --no-recheck and --p95-percent are for a Leeway that the drill starts: the one at --api is as it is")
	}
	return nil
}
