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
		"queue list":   p.asking(queueList),
		"queue status": p.asking(queueStatus),
	}
}

var queueList = question{
	synopsis: "List what gateways have of each model",
	about: `Lists for each model how many requests wait for an engine at all gateways together, for how long the first of them has,
how many are at engines, and how many ended per second lately. The state is PROVISIONING or DEPLOYING while requests have to
wait for a replica, READY or BUSY where one serves, CANCELLED where the model is stopped, and IDLE where nothing runs and
the first request brings a replica up.`,
	run: func(ctx context.Context, c *asker, _ []string) error {
		queues, err := c.Queues(ctx)
		if err != nil {
			return err
		}
		return c.print(list(queues), func() error {
			if len(queues) == 0 {
				fmt.Fprintln(c.out, "There are no models, and no gateway has a request.")
				return nil
			}
			at := now()
			t := newTable(c.out, "MODEL", "STATE", "WAITING", "OLDEST", "IN FLIGHT", "SERVED", "SERVING", "GATEWAYS")
			for _, q := range queues {
				t.row(q.Model, q.State, q.Waiting, age(q.Oldest, at), q.InFlight, perSecond(q.Served), q.Serving, q.Gateways)
			}
			return t.flush()
		})
	},
}

var queueStatus = question{
	synopsis: "Show a model's queue and its requests",
	about: `Shows what gateways have of one model: the requests that wait, the next first, and those in flight, with the gateway that
has them. Gateways name the first 64 of a queue and the oldest 64 at each replica.`,
	args: []string{"MODEL"},
	run: func(ctx context.Context, c *asker, args []string) error {
		q, err := c.Queue(ctx, args[0])
		if err != nil {
			return err
		}
		return c.print(q, func() error { return c.showQueue(q) })
	},
}

func (c *asker) showQueue(s api.QueueStatus) error {
	at := now()
	f := newFields(c.out)
	f.set("Model", s.Queue.Model)
	f.set("State", s.Queue.State)
	f.set("Waiting", waitingText(s.Queue, at))
	f.set("In flight", s.Queue.InFlight)
	f.set("Served", perSecond(s.Queue.Served))
	f.set("Serving", plural(s.Queue.Serving, "replica"))
	if s.Queue.Incomplete {
		f.set("Incomplete", "yes: the leader is new, and not every gateway has reported to it yet")
	}
	if err := f.flush(); err != nil {
		return err
	}
	if len(s.Gateways) > 0 {
		fmt.Fprintln(c.out, "\nGateways")
		t := newTable(c.out, "NAME", "STATE", "WAITING", "OLDEST", "IN FLIGHT", "SERVED")
		for _, g := range s.Gateways {
			t.row(g.Gateway, g.State, g.Waiting, age(g.Oldest, at), g.InFlight, perSecond(g.Served))
		}
		if err := t.flush(); err != nil {
			return err
		}
	}
	if len(s.Waiting) > 0 {
		fmt.Fprintln(c.out, "\nRequests that wait"+someOf(len(s.Waiting), s.Queue.Waiting)+", the next first")
		t := newTable(c.out, "POSITION", "REQUEST", "GATEWAY", "FOR")
		for _, r := range s.Waiting {
			t.row(r.Position, r.ID, r.Gateway, age(r.Started, at))
		}
		if err := t.flush(); err != nil {
			return err
		}
	}
	if len(s.InFlight) > 0 {
		fmt.Fprintln(c.out, "\nRequests in flight"+someOf(len(s.InFlight), s.Queue.InFlight)+", oldest first")
		t := newTable(c.out, "REQUEST", "REPLICA", "GATEWAY", "FOR")
		for _, r := range s.InFlight {
			t.row(r.ID, r.Replica, r.Gateway, age(r.Started, at))
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

// someOf says where not all are shown.
func someOf(shown, all int) string {
	if shown >= all {
		return ""
	}
	return fmt.Sprintf(" (%d of %d)", shown, all)
}

func perSecond(n float64) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", n), ".0") + "/s"
}

// waitingText is how many requests wait, and for how long the first of them has.
func waitingText(q api.Queue, at time.Time) string {
	if q.Waiting == 0 || q.Oldest.IsZero() {
		return fmt.Sprint(q.Waiting)
	}
	return fmt.Sprintf("%d, the oldest for %s", q.Waiting, age(q.Oldest, at))
}

// requestsText is what gateways have of a model, for its status.
func requestsText(q *api.Queue, at time.Time) string {
	if q == nil {
		return "not known: no gateway reports"
	}
	return fmt.Sprintf("%d in flight, waiting %s", q.InFlight, waitingText(*q, at))
}
