package raft

import (
	"errors"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	hraft "github.com/hashicorp/raft"

	"remuda/controller/state"
)

// collector reads Raft when it is asked, and counts what Apply does.
type collector struct {
	node  *Node
	apply *prometheus.HistogramVec

	leader, state, term, commit, lastLog, pending, peers, contact *prometheus.Desc
}

func newCollector(n *Node) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("remuda_raft_"+name, help, labels, nil)
	}
	return &collector{
		node: n,
		apply: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "remuda_raft_apply_seconds", Help: "Duration until commands were applied, by outcome.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}, []string{"outcome"}),
		leader:  desc("leader", "1 on the leader once it has applied all previously committed entries."),
		state:   desc("state", "1 for the current Raft state of the server.", "state"),
		term:    desc("term", "The current term."),
		commit:  desc("commit_index", "Index of the last committed entry."),
		lastLog: desc("last_index", "Index of the last entry in the log."),
		pending: desc("fsm_pending", "Committed entries waiting to be applied."),
		peers:   desc("peers", "Members of the cluster."),
		contact: desc("last_contact_seconds", "Time since the last contact with the leader; 0 on the leader."),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	c.apply.Describe(ch)
	for _, d := range []*prometheus.Desc{c.leader, c.state, c.term, c.commit, c.lastLog, c.pending, c.peers, c.contact} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	c.apply.Collect(ch)
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	r := c.node.raft
	leads := 0.0
	if now, _ := c.node.Leadership(); now.Leader {
		leads = 1
	}
	gauge(c.leader, leads)
	is := r.State()
	for _, s := range []hraft.RaftState{hraft.Follower, hraft.Candidate, hraft.Leader, hraft.Shutdown} {
		v := 0.0
		if s == is {
			v = 1
		}
		gauge(c.state, v, s.String())
	}
	gauge(c.term, float64(r.CurrentTerm()))
	gauge(c.commit, float64(r.CommitIndex()))
	gauge(c.lastLog, float64(r.LastIndex()))
	if pending, err := strconv.ParseFloat(r.Stats()["fsm_pending"], 64); err == nil {
		gauge(c.pending, pending)
	}
	if peers, err := c.node.Peers(); err == nil {
		gauge(c.peers, float64(len(peers)))
	}
	if at := c.node.LastContact(); !at.IsZero() {
		gauge(c.contact, max(time.Since(at).Seconds(), 0))
	}
}

func (c *collector) applied(took time.Duration, err error) {
	var refused *state.Error
	outcome := "unknown"
	switch {
	case err == nil:
		outcome = "applied"
	case errors.As(err, &refused):
		outcome = "refused"
	case errors.Is(err, ErrNotLeader):
		outcome = "not_leader"
	case errors.Is(err, ErrBusy):
		outcome = "busy"
	}
	c.apply.WithLabelValues(outcome).Observe(took.Seconds())
}
