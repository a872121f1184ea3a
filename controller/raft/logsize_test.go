package raft_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	hraft "github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"

	"remuda/controller/state"
	"remuda/internal/replica"
)

// cyclesPerDay is how often the replica of BenchmarkReplicaDay comes and goes: once an
// hour, which is a busy one.
const cyclesPerDay = 24

// day makes the commands of one replica's day, and applies them to a store, so that
// all of them are ones that a store takes. Names and numbers are as long as they are in
// a cluster. The replica is a failover pair.
type day struct {
	b        *testing.B
	store    *state.Store
	index    uint64
	now      time.Time
	commands [][]byte
	// bytes has the bytes of each step of a cycle, all cycles together.
	bytes map[string]int
}

const (
	dayModel = "meta-llama/Llama-3.1-8B-Instruct"
	dayNode  = "6e0f4a1c-9f0b-4d0e-8a4e-2f6f2f0a7b11"
	dayGPU   = "GPU-3f8a2b7e-5c1d-4e90-b6a7-0d9c8e7f6a51"
	dayHash  = "5f2a8c1e9b7d4f60a3c2e1d0b9a8f7e6"
)

func (d *day) apply(what any) []byte {
	c, ok := what.(state.Command)
	if !ok {
		resolved, refused := what.(state.Proposal).Resolve(d.store.View())
		require.Nil(d.b, refused)
		c = resolved
	}
	data, err := state.Encode(c)
	require.NoError(d.b, err)
	d.index++
	if res := d.store.Apply(d.index, data); res.Err != nil {
		require.FailNow(d.b, "refused", "%v", res.Err)
	}
	return data
}

// step commits one plan with one decision.
func (d *day) step(kind string, name replica.Name, reason string, inputs map[string]string, edit func(*state.Plan)) {
	c := &state.Plan{
		ID: fmt.Sprintf("0d7c1f52-8f3e-4b1a-9c55-%012d", d.index), Index: d.store.View().Index(), Time: d.now,
		Decisions: []state.Decision{{Time: d.now, Model: dayModel, Replica: name.String(), Kind: kind, Reason: reason, Details: inputs}},
	}
	edit(c)
	data := d.apply(c)
	d.commands = append(d.commands, data)
	d.bytes[kind] += len(data)
	d.now = d.now.Add(90*time.Second + 123456789*time.Nanosecond)
}

func (d *day) move(name replica.Name, event state.Event, edit func(*state.Move)) func(*state.Plan) {
	r := d.store.View().Replica(nil, name.String())
	require.NotNil(d.b, r)
	m := state.Move{Replica: name.String(), ModifyIndex: r.ModifyIndex, Event: event}
	if event == state.EventDrain || event == state.EventStop {
		m.Goal = state.GoalGone
	}
	if edit != nil {
		edit(&m)
	}
	return func(c *state.Plan) { c.Move = []state.Move{m} }
}

// cycle is from the placement of a replica to its end.
func (d *day) cycle(n int) {
	name := replica.Name{Model: dayModel, Variant: "h100", ID: fmt.Sprintf("7f3a0c1e-4b5d-4e6f-8a9b-%012d", n)}
	d.step("place", name, "1 replica runs and 2 are wanted: placed on node gpu-node-017, which has the least room left", map[string]string{
		"wanted": "2", "have": "1", "node": "gpu-node-017", "free_bytes": "68719476736", "needed_bytes": "42949672960", "free_seats": "2", "nodes_considered": "12",
	}, func(c *state.Plan) {
		c.Place = []state.Place{{
			Name: name, Version: 1,
			Placement: state.Placement{
				Node: dayNode, Seats: []string{dayGPU + "#0", dayGPU + "#1"},
				Memory: map[string]int64{dayGPU: 40 << 30}, HostMemory: 36 << 30,
			},
		}}
	})
	jobIndex := uint64(1_234_567)
	d.step("start", name, "its job is registered with Nomad", map[string]string{"job_index": "1234567"},
		d.move(name, state.EventStarted, func(m *state.Move) { m.JobIndex = &jobIndex }))
	failures := 0
	d.step("run", name, "its engine primary serves after 41.2 s", map[string]string{"seconds": "41.2", "token": "42"},
		d.move(name, state.EventServing, func(m *state.Move) { m.Failures = &failures }))
	d.step("drain", name, "2 replicas run and 1 is wanted: this one costs most", map[string]string{"wanted": "1", "have": "2", "cost": "3.5", "in_flight": "4"},
		d.move(name, state.EventDrain, nil))
	d.step("stop", name, "nothing is in flight after 8.4 s", map[string]string{"seconds": "8.4", "in_flight": "0"},
		d.move(name, state.EventStop, nil))
	modified := d.store.View().Replica(nil, name.String()).ModifyIndex
	d.step("remove", name, "its job has ended: its seats and bytes are free", map[string]string{"seats": "2", "freed_bytes": "42949672960"},
		func(c *state.Plan) { c.Remove = []state.Remove{{Replica: name.String(), ModifyIndex: modified}} })
}

func newDay(b *testing.B) *day {
	s, err := state.New()
	require.NoError(b, err)
	d := &day{b: b, store: s, now: time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC), bytes: map[string]int{}}
	d.apply(&state.UpsertModel{Model: state.Model{
		Name: dayModel, Max: 8, Failover: true, Management: state.ManagementFull, Hash: dayHash,
		Variants: []state.Variant{{Name: "h100", GPUs: 1, Memory: 40 << 30, HostMemory: 36 << 30, Hash: dayHash}},
	}, Time: d.now})
	d.apply(&state.UpsertNodes{Nodes: []state.Node{{
		ID: dayNode, Name: "gpu-node-017", Ready: true, HostMemory: 1 << 40,
		GPUs: []state.GPU{{UUID: dayGPU, Memory: 80 << 30, Healthy: true, Seats: []string{dayGPU + "#0", dayGPU + "#1"}}},
	}}})
	return d
}

// BenchmarkReplicaDay measures the Raft log of one replica that comes and goes
// cyclesPerDay times a day: the commands' bytes, those of each step, and what is written
// to disk for them on one server. How much of it is kept is another matter: TrailingLogs
// behind the last snapshot.
func BenchmarkReplicaDay(b *testing.B) {
	var d *day
	for b.Loop() {
		d = newDay(b)
		for n := range cyclesPerDay {
			d.cycle(n)
		}
	}
	total := 0
	for kind, bytes := range d.bytes {
		total += bytes
		b.ReportMetric(float64(bytes)/cyclesPerDay, kind+"-B")
	}
	b.ReportMetric(float64(total), "log-B/replica-day")
	b.ReportMetric(float64(len(d.commands)), "entries/replica-day")
	b.ReportMetric(written(b, d.commands), "disk-B/replica-day")
}

// written returns how many bytes of pages the log's file is written for the commands of
// a day, where each entry is stored by itself: the dearest case, because entries that
// come together share their pages.
func written(b *testing.B, commands [][]byte) float64 {
	s, err := raftboltdb.New(raftboltdb.Options{
		Path: filepath.Join(b.TempDir(), "raft.db"), NoSync: true,
		BoltOptions: &bbolt.Options{NoFreelistSync: true, FreelistType: bbolt.FreelistMapType}, // as Node has them
	})
	require.NoError(b, err)
	defer s.Close()
	const days = 50 // The tree of pages has the depth of a log in use.
	before, index := s.Stats(), uint64(0)
	for range days {
		for _, data := range commands {
			index++
			require.NoError(b, s.StoreLog(&hraft.Log{Index: index, Term: 3, Type: hraft.LogCommand, Data: data, AppendedAt: time.Now()}))
		}
	}
	after := s.Stats()
	return float64(after.TxStats.GetPageAlloc()-before.TxStats.GetPageAlloc()) / days
}
