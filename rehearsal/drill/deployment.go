package drill

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"leeway/broker/background"
	"leeway/broker/client"
	"leeway/broker/config"
	"leeway/broker/wire"
	"leeway/rehearsal/lab"
)

// DeploymentOptions say where a deployment is and what a drill may do to it.
type DeploymentOptions struct {
	// URL is the API's address, for example http://127.0.0.1:8080. Required.
	URL string
	// Key is an on-call key; empty: none.
	Key string
	// Class is the class to submit to, and the one whose flags a drill sets;
	// empty: the default class, and flags for all.
	Class string
	// Controls are the control endpoints of lab backends, by the backend's name.
	Controls map[string]string
	// WorkerPID and RedisPID are processes of this machine that a drill may kill
	// or stop; 0: none.
	WorkerPID, RedisPID int
	// Remote allows addresses that are not on loopback.
	Remote bool
}

// Deployment is a Leeway that runs elsewhere: in other processes, known by the
// address of its API. What became of the jobs is read from that alone.
type Deployment struct {
	Target

	http     *http.Transport
	gate     *wire.GateAnswer
	backends []string
	workers  map[string]bool // those that have been seen
}

// maxIdle is how many connections are kept: each admitted job holds one until
// it ends.
const maxIdle = 1024

// OpenDeployment checks the options against the deployment and reads how it
// stands. Close must be called.
func OpenDeployment(ctx context.Context, o DeploymentOptions) (*Deployment, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	t := &http.Transport{MaxIdleConnsPerHost: maxIdle, IdleConnTimeout: time.Minute}
	hc := &http.Client{Transport: t}
	d := &Deployment{http: t, workers: map[string]bool{}, Target: Target{
		Client: &client.Client{Base: strings.TrimSuffix(o.URL, "/"), Key: o.Key, HTTP: hc}, Class: o.Class, Labs: map[string]Control{},
	}}
	for name, u := range o.Controls {
		d.Labs[name] = &lab.Remote{URL: u, HTTP: hc}
	}
	signal := func(pid int, s syscall.Signal) func(context.Context) error {
		return func(context.Context) error { return syscall.Kill(pid, s) }
	}
	d.Processes = map[Action]func(context.Context) error{}
	if o.WorkerPID != 0 {
		d.Processes[DoKillWorker], d.Processes[DoAddWorker] = signal(o.WorkerPID, syscall.SIGKILL), d.newWorker
	}
	if o.RedisPID != 0 {
		d.Processes[DoPauseStore], d.Processes[DoWakeStore] = signal(o.RedisPID, syscall.SIGSTOP), signal(o.RedisPID, syscall.SIGCONT)
	}
	if err := d.look(ctx); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// check checks what can be checked without asking anybody.
func (o *DeploymentOptions) check() error {
	host, err := o.host(o.URL)
	if err != nil {
		return fmt.Errorf("--api: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(o.Controls)) {
		if _, err := o.host(o.Controls[name]); err != nil {
			return fmt.Errorf("--lab-control %s: %w", name, err)
		}
	}
	for flag, pid := range map[string]int{"--worker-pid": o.WorkerPID, "--redis-pid": o.RedisPID} {
		switch {
		case pid == 0:
		case !config.LoopbackHost(host):
			return fmt.Errorf("%s: is for a deployment on this machine, and %s is not", flag, host)
		case pid < 2 || pid == os.Getpid():
			return fmt.Errorf("%s: %d is no worker's and no Redis's", flag, pid)
		default:
			if err := syscall.Kill(pid, 0); err != nil {
				return fmt.Errorf("%s: process %d: %w", flag, pid, err)
			}
		}
	}
	return nil
}

// host is an address's host, if it may be drilled.
func (o *DeploymentOptions) host(address string) (string, error) {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return "", errors.New("want an address such as http://127.0.0.1:8080")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return "", errors.New("want an address without a user, a query or a fragment")
	case !o.Remote && !config.LoopbackHost(u.Hostname()):
		return "", fmt.Errorf("%s is not on this machine: a drill loads it and its jobs cost what they generate; --remote does it anyway", u.Host)
	}
	return u.Hostname(), nil
}

// look reads how the deployment stands.
func (d *Deployment) look(ctx context.Context) error {
	var err error
	if d.gate, err = d.Client.Gate(ctx, d.Class); err != nil {
		return err
	}
	pools, err := d.Client.Pools(ctx)
	if err != nil {
		return err
	}
	for i := range pools.Backends {
		d.backends = append(d.backends, pools.Backends[i].Backend)
		d.workers[pools.Backends[i].Worker] = true
	}
	slices.Sort(d.backends)
	d.backends = slices.Compact(d.backends)
	for _, name := range slices.Sorted(maps.Keys(d.Labs)) {
		if !slices.Contains(d.backends, name) {
			return fmt.Errorf("--lab-control: no backend there is called %.60q; there are: %s", name, strings.Join(d.backends, ", "))
		}
	}
	d.WholeRecord = len(d.backends) > 0 && len(d.Labs) == len(d.backends)
	return nil
}

// Close lets go of the connections.
func (d *Deployment) Close() { d.http.CloseIdleConnections() }

// newWorker waits for a worker that was not there before: somebody else starts
// it.
func (d *Deployment) newWorker(ctx context.Context) error {
	for {
		pools, err := d.Client.Pools(ctx)
		if err == nil {
			for i := range pools.Backends {
				if w := pools.Backends[i].Worker; !d.workers[w] {
					d.workers[w] = true
					return nil
				}
			}
		}
		if background.Sleep(ctx, askAgain) != nil {
			return fmt.Errorf("no new worker has come: a supervisor or you must start one: %w", ctx.Err())
		}
	}
}
