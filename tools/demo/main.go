// demo records docs/demo.svg: a client's stream that goes on while kill -9 takes the engine that serves it.
// It runs a real cluster (remuda dev) and real commands in two terminals, and draws what they showed, when
// they showed it.
//
// Usage: go run ./tools/demo -remuda bin/remuda -out docs/demo.svg
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	consulapi "github.com/hashicorp/consul/api"

	"remuda/controller/api"
	"remuda/internal/devcluster"
	"remuda/internal/replica"
	"remuda/jobs"
)

func main() {
	remuda := flag.String("remuda", "bin/remuda", "the remuda `binary`, with remuda-device beside it")
	out := flag.String("out", "docs/demo.svg", "`file` to write")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *remuda, *out); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// model is a failover pair whose streams go on at another engine. It speaks at the pace of a reader.
const model = `model "llama" {
  replicas     = 1
  failover     = true
  continuation = true

  variant "sim" {
    weights = "256MiB"
    slots   = 8
    engine  = "sim"
    job     = "llama.nomad.hcl"
  }
}
`

// tokensPerSecond is what the simulated engine makes.
const tokensPerSecond = 18

func run(ctx context.Context, remuda, out string) (err error) {
	dir, err := os.MkdirTemp("", "remuda-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	const flagOf = `"-start-asleep",`
	if n := strings.Count(jobs.Failover, flagOf); n != 2 {
		return fmt.Errorf("jobs/failover.nomad.hcl has %s %d times: expected one for each engine", flagOf, n)
	}
	job := strings.ReplaceAll(jobs.Failover, flagOf, fmt.Sprintf(`%s "-decode-rate", "%d",`, flagOf, tokensPerSecond))
	for name, text := range map[string]string{"llama.model.hcl": model, "llama.nomad.hcl": job} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	opts := devcluster.DefaultOptions()
	if opts.Remuda, err = filepath.Abs(remuda); err != nil {
		return err
	}
	opts.GPUs, opts.NoAutoscaler, opts.Out, opts.DataDir, opts.Model = 1, true, os.Stderr, filepath.Join(dir, "data"), filepath.Join(dir, "llama.model.hcl")
	cluster, err := devcluster.New(opts)
	if err != nil {
		return err
	}
	running, end := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- cluster.Run(running, nil) }()
	defer func() { end(); err = errors.Join(err, <-ended) }()
	select {
	case <-cluster.Ready():
	case err := <-ended:
		ended <- nil
		return errors.Join(errors.New("the cluster did not start"), err)
	}
	svg, err := record(ctx, cluster.Info(), filepath.Dir(opts.Remuda))
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%s: %d KiB\n", out, len(svg)>>10)
	return os.WriteFile(out, svg, 0o644)
}

// record plays the scene in two terminals.
func record(ctx context.Context, info devcluster.Info, bin string) (svg []byte, err error) {
	if err := standby(ctx, info); err != nil {
		return nil, err
	}
	env := append(os.Environ(), "TERM=xterm-256color", "PS1=$ ", "BASH_SILENCE_DEPRECATION_WARNING=1", "PATH="+bin+":"+os.Getenv("PATH"),
		"REMUDA_ADDR="+info.Controller, "REMUDA_GATEWAY="+info.Gateway, "NOMAD_ADDR="+info.Nomad, "CONSUL_HTTP_ADDR="+info.Consul)
	began := time.Now()
	client, err := newTerminal("a client", 80, 15, began, env)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, client.close()) }()
	operator, err := newTerminal("the node with the engine", 80, 10, began, env)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, operator.close()) }()
	pid, err := serving(info)
	if err != nil {
		return nil, err
	}
	// The simulated engine's answer to this question is long enough.
	const question = `remuda chat llama -m "Why does a rider need spare horses?"`
	for _, step := range []struct {
		in    *terminal
		types string
		// shows is what the terminal must show before the next step begins.
		shows string
		pause time.Duration
	}{
		{operator, "remuda replica list", "HOT", time.Second},
		{client, question, "", 2 * time.Second},
		{operator, fmt.Sprintf("kill -9 %d   # the engine that serves", pid), "", 2 * time.Second},
		{operator, "remuda replica status llama | grep -E 'Serves|Last failover'", "Last failover", 0},
		{client, "", "[llama", 4 * time.Second},
	} {
		if err := step.in.play(ctx, step.types, step.shows); err != nil {
			return nil, err
		}
		time.Sleep(step.pause)
		if strings.HasPrefix(step.types, "kill") && strings.Contains(client.text(), "[llama") {
			return nil, fmt.Errorf("the answer had ended before the engine was killed:\n%s", client.text())
		}
	}
	if strings.Contains(client.text(), "error") {
		return nil, fmt.Errorf("the stream broke:\n%s", client.text())
	}
	return draw(time.Since(began), client, operator), nil
}

// standby waits until the pair has one.
func standby(ctx context.Context, info devcluster.Info) error {
	client, err := api.NewClient(api.Config{Addresses: []string{info.Controller}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		status, _, err := client.Model(ctx, "llama", api.QueryOptions{})
		if err != nil {
			return err
		}
		if len(status.Replicas) == 1 {
			if p := status.Replicas[0].Pair; p != nil && p.Serves != "" && p.Degraded == "" {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return errors.New("the pair has no standby")
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// serving is the process of the engine that is registered in Consul.
func serving(info devcluster.Info) (int, error) {
	cfg := consulapi.DefaultConfig()
	cfg.Address = info.Consul
	consul, err := consulapi.NewClient(cfg)
	if err != nil {
		return 0, err
	}
	entries, _, err := consul.Health().Service(replica.ServiceName, "", true, nil)
	if err != nil {
		return 0, err
	}
	if len(entries) != 1 {
		return 0, fmt.Errorf("%d engines serve: expected 1", len(entries))
	}
	listen := fmt.Sprintf("\x00sim\x00-listen\x00%s:%d\x00", entries[0].Service.Address, entries[0].Service.Port)
	found, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0, err
	}
	for _, path := range found {
		// The shim's command line has the engine's at its end.
		if raw, err := os.ReadFile(path); err == nil && strings.Contains(string(raw), listen) && !strings.Contains(string(raw), "\x00engine\x00") {
			var pid int
			_, err := fmt.Sscanf(path, "/proc/%d/cmdline", &pid)
			return pid, err
		}
	}
	return 0, fmt.Errorf("no process has %q", listen)
}
