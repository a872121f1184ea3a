package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	"remuda/controller/api"
)

func (p *program) requestVerbs() map[string]verb {
	return map[string]verb{"request kill": p.apiVerb(requestKill)}
}

// killPoll is how often it is looked whether a request has ended. Gateways report every two
// seconds at least, and at once what changes.
const killPoll = 200 * time.Millisecond

var requestKill = apiCommand{
	synopsis: "Kill a request, waiting or in flight",
	about: `Orders the gateways to end the request with this ID. A gateway made it: it is in remuda queue
status, and the X-Request-Id of the answer. The client's own X-Request-Id is another one; the
access log has both. A waiting request gets an error as its answer, and one in flight is cut off
with an error. Gateways report only some of their requests, so the order goes to all of them even
if the request is not found; the exit code is then 1, because the outcome is unknown.`,
	args: []string{"ID"},
	setup: func(fs *flag.FlagSet) runFunc {
		var k killing
		fs.BoolVar(&k.detach, "detach", false, "return at once instead of waiting until no gateway reports the request")
		fs.DurationVar(&k.timeout, "timeout", 10*time.Second, "how long to wait, 0 for no limit")
		return func(ctx context.Context, c *apiClient, args []string) error {
			s, err := c.KillRequest(ctx, args[0])
			if err != nil {
				return err
			}
			if len(s.Places) == 0 {
				return fmt.Errorf("request %q is not reported by any gateway (they report the oldest %d at each replica and the first %d of each queue): all gateways are ordered to end it if present",
					s.ID, api.MaxReportRequests, api.MaxReportRequests)
			}
			for _, p := range s.Places {
				c.printf("%s %s: kill ordered.\n", s.ID, placeText(p))
			}
			if !k.detach {
				if s, err = k.follow(ctx, c, s); err != nil {
					return err
				}
				c.printf("%s has ended.\n", s.ID)
			}
			return c.print(s, func() error { return nil })
		}
	},
}

// placeText describes where a request is.
func placeText(p api.QueuedRequest) string {
	if p.Replica != "" {
		return fmt.Sprintf("is in flight at %s by gateway %s", p.Replica, p.Gateway)
	}
	return fmt.Sprintf("waits for %s at gateway %s", p.Model, p.Gateway)
}

// killing waits for the end of a request.
type killing struct {
	detach  bool
	timeout time.Duration
}

// follow returns once no gateway names the request. A leader that is new knows neither the
// order nor what the gateways have: it is given the order again, and heard only once every
// gateway has reported to it.
func (k killing) follow(parent context.Context, c *apiClient, s api.RequestStatus) (api.RequestStatus, error) {
	ctx, cancel := parent, context.CancelFunc(func() {})
	if k.timeout > 0 {
		ctx, cancel = context.WithTimeout(parent, k.timeout)
	}
	defer cancel()
	tick := time.NewTicker(killPoll)
	defer tick.Stop()
	var last error
	for {
		select {
		case <-ctx.Done():
			return s, k.timeoutError(parent, s, last)
		case <-tick.C:
		}
		now, err := c.Request(ctx, s.ID)
		if err == nil && len(now.Places) > 0 && !now.Killed {
			now, err = c.KillRequest(ctx, s.ID)
			var refused *api.Error
			if errors.As(err, &refused) && refused.Code == api.CodeNotFound {
				continue // It has ended meanwhile: the next poll shows it.
			}
		}
		if err != nil {
			if ctx.Err() == nil {
				last = err
			}
			continue
		}
		s, last = now, nil
		if len(s.Places) == 0 && (s.Killed || s.Complete) {
			return s, nil
		}
	}
}

// timeoutError is the error if the wait ends before the request.
func (k killing) timeoutError(parent context.Context, s api.RequestStatus, last error) error {
	after := "interrupted"
	if parent.Err() == nil {
		after = fmt.Sprintf("after %s", k.timeout)
	}
	var where []string
	for _, p := range s.Places {
		where = append(where, placeText(p))
	}
	switch {
	case last != nil:
		return fmt.Errorf("%s: cannot tell whether %s has ended: %w", after, s.ID, last)
	case len(where) == 0:
		return fmt.Errorf("%s: cannot tell whether %s has ended: the leader is new, and not all gateways have reported yet", after, s.ID)
	}
	return fmt.Errorf("%s: %s still %s", after, s.ID, strings.Join(where, ", and "))
}
