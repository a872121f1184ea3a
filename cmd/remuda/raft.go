package main

import (
	"context"
	"fmt"
	"time"

	"remuda/controller/api"
)

func (p *program) raftVerbs() map[string]verb {
	return map[string]verb{
		"raft list-peers":      p.asking(raftListPeers),
		"raft remove-peer":     p.asking(raftRemovePeer),
		"raft transfer-leader": p.asking(raftTransferLeader),
	}
}

var raftListPeers = question{
	synopsis: "List the servers of the cluster",
	about:    `Lists the controller's servers and which of them leads.`,
	run: func(ctx context.Context, c *asker, _ []string) error {
		// Who has lost the leader wants to know who the others are all the same.
		cfg, _, err := c.RaftConfiguration(ctx, api.QueryOptions{Stale: true})
		if err != nil {
			return err
		}
		return c.print(cfg, func() error {
			t := newTable(c.out, "ID", "ADDRESS", "STATE")
			for _, s := range cfg.Servers {
				state := "follower"
				if s.Leader {
					state = "leader"
				}
				t.row(s.ID, s.Address, state)
			}
			return t.flush()
		})
	},
}

var raftRemovePeer = question{
	synopsis: "Take a server out of the cluster",
	about: `Takes a server out of the cluster, so that the others need it no more for a majority. Do it for one that will not come
back; a server that only restarts stays.`,
	args: []string{"ID"},
	run: func(ctx context.Context, c *asker, args []string) error {
		if err := c.RemovePeer(ctx, args[0]); err != nil {
			return err
		}
		return c.done("%s is out of the cluster.\n", args[0])
	},
}

var raftTransferLeader = question{
	synopsis: "Make another server lead",
	about:    `Hands leadership over to the server with the ID, or to any other.`,
	args:     []string{"[ID]"},
	run: func(ctx context.Context, c *asker, args []string) error {
		id := ""
		if len(args) > 0 {
			id = args[0]
		}
		before, err := c.Leader(ctx)
		if err != nil {
			return err
		}
		if err := c.TransferLeadership(ctx, id); err != nil {
			return err
		}
		leader, err := c.newLeader(ctx, before)
		if err != nil {
			return err
		}
		return c.print(leader, func() error {
			if leader.ID == "" {
				fmt.Fprintln(c.out, "Leadership was handed over; the new leader is not known here yet.")
				return nil
			}
			fmt.Fprintf(c.out, "%s at %s leads.\n", leader.ID, leader.Address)
			return nil
		})
	},
}

// newLeader asks who leads until the server that is asked knows of another than before,
// for as long as an election may take; it is empty where that was not enough.
func (c *asker) newLeader(ctx context.Context, before api.LeaderStatus) (api.LeaderStatus, error) {
	for patience := time.After(5 * time.Second); ; {
		leader, err := c.Leader(ctx)
		if err != nil || leader.ID != "" && leader.ID != before.ID {
			return leader, err
		}
		select {
		case <-ctx.Done():
			return api.LeaderStatus{}, ctx.Err()
		case <-patience:
			return api.LeaderStatus{}, nil
		case <-time.After(50 * time.Millisecond):
		}
	}
}
