package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"remuda/controller/api"
)

func (p *program) queueVerbs() map[string]verb {
	return map[string]verb{
		"queue list":   p.apiVerb(queueList),
		"queue status": p.apiVerb(queueStatus),
	}
}

var queueList = apiCommand{
	synopsis: "List the requests of each model at the gateways",
	about: `Lists for each model, over all gateways: the number of requests waiting for an engine, the age
of the oldest, the number in flight, and the recent rate of finished requests.

States:
  IDLE          no replica runs; the first request starts one
  PROVISIONING  no replica runs yet, and the controller is asked for one
  DEPLOYING     a replica is starting
  READY         a replica serves, no requests in flight
  BUSY          requests are in flight
  STOPPED       the model is stopped`,
	show: func(ctx context.Context, c *apiClient, _ []string, _ api.QueryOptions) (api.QueryMeta, error) {
		queues, err := c.Queues(ctx)
		if err != nil {
			return api.QueryMeta{}, err
		}
		return api.QueryMeta{}, c.print(list(queues), func() error {
			if len(queues) == 0 {
				fmt.Fprintln(c.out, "No models and no requests.")
				return nil
			}
			at := now()
			t := c.table("MODEL", "STATE", "WAITING", "OLDEST", "IN FLIGHT", "SERVED", "SERVING", "GATEWAYS")
			for _, q := range queues {
				t.row(q.Model, q.State, q.Waiting, age(q.OldestAt, at), q.InFlight, perSecond(q.CompletedPerSecond), q.Serving, q.Gateways)
			}
			return t.flush()
		})
	},
}

var queueStatus = apiCommand{
	synopsis: "Show a model's queue and its requests",
	about: `Shows the requests of one model at the gateways: those waiting, next first, and those in
flight, with their gateway. Gateways report the first 64 of a queue and the oldest 64 at each
replica.`,
	args: []string{"MODEL"},
	show: func(ctx context.Context, c *apiClient, args []string, _ api.QueryOptions) (api.QueryMeta, error) {
		q, err := c.Queue(ctx, args[0])
		if err != nil {
			return api.QueryMeta{}, err
		}
		return api.QueryMeta{}, c.print(q, func() error { return c.showQueue(q) })
	},
}

func (c *apiClient) showQueue(s api.QueueStatus) error {
	at := now()
	f := c.fields()
	f.set("Model", s.Queue.Model)
	f.set("State", s.Queue.State)
	f.set("Waiting", waitingText(s.Queue, at))
	f.set("In flight", s.Queue.InFlight)
	f.set("Served", perSecond(s.Queue.CompletedPerSecond))
	f.set("Serving", plural(s.Queue.Serving, "replica"))
	if s.Queue.Incomplete {
		f.set("Incomplete", "yes: the leader is new, and not all gateways have reported yet")
	}
	if err := f.flush(); err != nil {
		return err
	}
	if len(s.Gateways) > 0 {
		fmt.Fprintln(c.out, "\nGateways")
		t := c.table("NAME", "STATE", "WAITING", "OLDEST", "IN FLIGHT", "SERVED")
		for _, g := range s.Gateways {
			t.row(g.Gateway, g.State, g.Waiting, age(g.OldestAt, at), g.InFlight, perSecond(g.CompletedPerSecond))
		}
		if err := t.flush(); err != nil {
			return err
		}
	}
	if len(s.Waiting) > 0 {
		fmt.Fprintln(c.out, "\nWaiting requests"+someOf(len(s.Waiting), s.Queue.Waiting)+", next first")
		t := c.table("POSITION", "FOR", "KEY", "REQUEST", "GATEWAY")
		for _, r := range s.Waiting {
			t.row(r.Position, age(r.Started, at), r.Key, r.ID, r.Gateway)
		}
		if err := t.flush(); err != nil {
			return err
		}
	}
	if len(s.InFlight) > 0 {
		fmt.Fprintln(c.out, "\nRequests in flight"+someOf(len(s.InFlight), s.Queue.InFlight)+", oldest first")
		t := c.table("FOR", "KEY", "REQUEST", "REPLICA", "GATEWAY")
		var names []string
		for _, r := range s.InFlight {
			names = append(names, r.Replica)
		}
		name := c.shortNames(names)
		for _, r := range s.InFlight {
			t.row(age(r.Started, at), r.Key, r.ID, name(r.Replica), r.Gateway)
		}
		if err := t.flush(); err != nil {
			return err
		}
	}
	if len(s.Replicas) == 0 {
		return nil
	}
	fmt.Fprintln(c.out, "\nReplicas")
	return c.replicaTable(s.Replicas)
}

// someOf returns a note if not all are shown.
func someOf(shown, all int) string {
	if shown >= all {
		return ""
	}
	return fmt.Sprintf(" (%d of %d)", shown, all)
}

func perSecond(n float64) string {
	if n > 0 && n < 0.05 {
		return "<0.1/s"
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", n), ".0") + "/s"
}

// waitingText is how many requests wait, and for how long the first of them has.
func waitingText(q api.Queue, at time.Time) string {
	if q.Waiting == 0 || q.OldestAt.IsZero() {
		return fmt.Sprint(q.Waiting)
	}
	return fmt.Sprintf("%d, the oldest for %s", q.Waiting, age(q.OldestAt, at))
}

// requestsText is what gateways have of a model, for its status.
func requestsText(q *api.Queue, at time.Time) string {
	if q == nil {
		return "unknown: no gateway reports"
	}
	return fmt.Sprintf("%d in flight, waiting %s", q.InFlight, waitingText(*q, at))
}
