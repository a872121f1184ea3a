package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	"remuda/controller/api"
)

var gatewayDrain = apiCommand{
	synopsis: "Drain a gateway and stop it",
	about: `Makes a gateway reject new requests, finish the running ones and stop, like SIGTERM. Requests
that wait without an engine get an error. A gateway is given by its name or a unique prefix of
it. It counts as stopped when it no longer reports; Nomad may start another one in its place.`,
	args: []string{"GATEWAY"},
	setup: func(fs *flag.FlagSet) runFunc {
		var d draining
		fs.BoolVar(&d.detach, "detach", false, "return at once instead of waiting until the gateway is gone")
		// The longest streams take minutes, and a gateway bounds its drain itself.
		fs.DurationVar(&d.timeout, "timeout", 30*time.Minute, "how long to wait, 0 for no limit; the drain continues either way")
		return func(ctx context.Context, c *apiClient, args []string) error {
			g, err := c.findGateway(ctx, args[0])
			if err != nil {
				return err
			}
			if g, err = c.DrainGateway(ctx, g.Name); err != nil {
				return err
			}
			if d.detach {
				c.printf("%s is draining: see \"remuda gateway list\".\n", g.Name)
			} else if g, err = d.follow(ctx, c, g); err != nil {
				return err
			}
			return c.print(g, func() error { return nil })
		}
	},
}

// draining waits until a gateway has stopped.
type draining struct {
	detach  bool
	timeout time.Duration
}

// drainPoll is the poll interval while waiting for a gateway to stop.
const drainPoll = time.Second

// follow returns once the gateway is gone. A new leader has no report of it yet, so a gateway counts
// as gone only when it is missing for half the lifetime of its reports: a live gateway reports
// several times in that time. A new leader does not know of the drain either: it is requested again.
func (d draining) follow(parent context.Context, c *apiClient, g api.Gateway) (api.Gateway, error) {
	ctx, cancel := parent, context.CancelFunc(func() {})
	if d.timeout > 0 {
		ctx, cancel = context.WithTimeout(parent, d.timeout)
	}
	defer cancel()
	enough := g.ExpiresAt.Sub(g.LastReportAt) / 2
	tick := time.NewTicker(max(min(drainPoll, enough/2), 10*time.Millisecond))
	defer tick.Stop()
	var missing time.Time // since when, zero while it is listed
	var last error
	printed := ""
	for {
		if text := drainText(g); missing.IsZero() && text != printed {
			printed = text
			c.printf("%s\n", text)
		}
		select {
		case <-ctx.Done():
			return g, d.timeoutError(parent, g, last)
		case <-tick.C:
		}
		all, err := c.Gateways(ctx)
		if err != nil {
			missing = time.Time{}
			if ctx.Err() == nil { // else the timeout has cancelled the request
				last = err
			}
			continue
		}
		last = nil
		there := false
		for _, one := range all {
			if one.Name == g.Name {
				g, there = one, true
			}
		}
		switch {
		case !there && missing.IsZero():
			missing = time.Now()
		case !there && time.Since(missing) >= enough:
			c.printf("%s has stopped.\n", g.Name)
			return g, nil
		case there:
			missing = time.Time{}
			if !g.Draining && !g.DrainOrdered {
				if _, err := c.DrainGateway(ctx, g.Name); ctx.Err() == nil {
					last = err
				}
			}
		}
	}
}

// drainText describes the progress of a gateway's drain.
func drainText(g api.Gateway) string {
	return fmt.Sprintf("%s is %s: %d in flight, %d waiting", g.Name, gatewayStatus(g), g.InFlight, g.Waiting)
}

// timeoutError is the error if the wait ends before the drain.
func (d draining) timeoutError(parent context.Context, g api.Gateway, last error) error {
	after := "interrupted"
	if parent.Err() == nil {
		after = fmt.Sprintf("after %s", d.timeout)
	}
	if last != nil {
		return fmt.Errorf("%s: cannot tell whether %s has stopped: %w", after, g.Name, last)
	}
	return fmt.Errorf("%s: %s", after, drainText(g))
}
