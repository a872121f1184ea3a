package state_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/controller/state"
)

// wide is a store with the model m, whose replicas have seats on two GPUs of node n and
// use one of them, with 8 bytes, of which 2 remain while they sleep; m:v:1 is there, HOT
// and running on GPU0.
func wide(t *testing.T) *log {
	l := newLog(t)
	m := model("m", func(m *state.Model) {
		m.Desired = state.Any(2)
		m.Variants[0].Memory, m.Variants[0].SleepMemory, m.Variants[0].Reach = 8, 2, 2
	})
	l.must(&state.UpsertModel{Model: m}, &state.UpsertModel{Model: model("other")}, &state.UpsertNodes{Nodes: []state.Node{node("n", 2, 3, 10)}})
	l.must(l.plan(widePlace("1", 0, 0)))
	l.to("1", state.EventStarted, "")
	l.to("1", state.EventServing, "")
	return l
}

// widePlace has the seat of that number on both GPUs, and memory of one.
func widePlace(id string, gpu, seat int) state.Place {
	p := place("m", id, "n", gpu, seat, 8)
	p.Placement.SleepMemory, p.Placement.HostMemory = 2, 4
	p.Placement.Seats = append(p.Placement.Seats, place("m", id, "n", 1-gpu, seat, 8).Placement.Seats...)
	return p
}

func (l *log) to(id string, event state.Event, goal state.Goal) {
	l.must(l.move(name("m", id), event, goal))
}

func (l *log) sleep(id string) {
	l.to(id, state.EventDrain, state.GoalWarm)
	l.to(id, state.EventSleep, "")
	l.to(id, state.EventSlept, "")
}

// bytesOf returns what is held of both GPUs and of the host.
func (l *log) bytesOf() [3]int64 {
	u := l.store.View().Usage(nil, "n")
	return [3]int64{u.Memory["n-GPU0"], u.Memory["n-GPU1"], u.HostMemory}
}

func TestWarmOneHoldsWhatASleepingProcessTakes(t *testing.T) {
	l := wide(t)
	require.Equal(t, [3]int64{8, 0, 0}, l.bytesOf())
	l.to("1", state.EventDrain, state.GoalWarm)
	require.Equal(t, [3]int64{8, 0, 0}, l.bytesOf())
	l.to("1", state.EventSleep, "")
	require.Equal(t, [3]int64{8, 0, 4}, l.bytesOf())
	l.to("1", state.EventSlept, "")
	require.Equal(t, [3]int64{2, 0, 4}, l.bytesOf())
	require.Len(t, l.store.View().Usage(nil, "n").Seats, 2)

	// To the byte: what the sleeping one keeps cannot be placed on.
	require.ErrorContains(t, l.apply(l.plan(place("other", "2", "n", 0, 1, 9))).Err, "GPU n-GPU0 on node n has 8 of 10 bytes free")
	l.must(l.plan(place("other", "2", "n", 0, 1, 8)))
	require.Equal(t, [3]int64{10, 0, 4}, l.bytesOf())
	require.ErrorContains(t, l.apply(l.move(name("m", "1"), state.EventWake, "")).Err, "GPU n-GPU0 on node n has 2 of 10 bytes free")
	l.to("1", state.EventStop, state.GoalCold)
	require.Equal(t, [3]int64{10, 0, 4}, l.bytesOf(), "until its process has ended")
	l.to("1", state.EventStopped, "")
	require.Equal(t, [3]int64{8, 0, 0}, l.bytesOf())
}

func TestWakeOnAnotherGPU(t *testing.T) {
	l := wide(t)
	l.sleep("1")
	l.must(l.plan(place("other", "2", "n", 0, 1, 8)))
	c := l.move(name("m", "1"), state.EventWake, "")
	c.Memory = map[string]int64{"n-GPU1": 8}
	l.must(c)
	require.Equal(t, [3]int64{10, 8, 4}, l.bytesOf(), "until it serves, its process has what it had where it slept")
	require.ErrorContains(t, l.apply(l.plan(place("other", "3", "n", 0, 2, 2))).Err, "0 bytes free")
	l.to("1", state.EventServing, "")
	require.Equal(t, [3]int64{8, 8, 0}, l.bytesOf())
	require.Equal(t, map[string]int64{"n-GPU1": 8}, l.replica(name("m", "1")).Placement.Memory)
	l.sleep("1")
	require.Equal(t, [3]int64{8, 2, 4}, l.bytesOf(), "it sleeps where it served")
}

// TestAWakeThatFailsRollsTheLedgerBack to what the sleeping one had.
func TestAWakeThatFailsRollsTheLedgerBack(t *testing.T) {
	l := wide(t)
	l.sleep("1")
	asleep := l.bytesOf()
	l.to("1", state.EventWake, "")
	l.to("1", state.EventSlept, "")
	require.Equal(t, asleep, l.bytesOf())
	l.to("1", state.EventWake, "")
	l.to("1", state.EventStop, state.GoalCold)
	require.Equal(t, [3]int64{8, 0, 0}, l.bytesOf(), "it may have taken the GPU")
	l.to("1", state.EventStopped, "")
	require.Equal(t, [3]int64{}, l.bytesOf())
}

// TestAWakeElsewhereThatFails has what it had where it slept until its process is gone.
func TestAWakeElsewhereThatFails(t *testing.T) {
	l := wide(t)
	l.sleep("1")
	l.must(l.plan(place("other", "2", "n", 0, 1, 8)))
	c := l.move(name("m", "1"), state.EventWake, "")
	c.Memory = map[string]int64{"n-GPU1": 8}
	l.must(c)
	l.to("1", state.EventStop, state.GoalCold)
	require.Equal(t, [3]int64{10, 8, 0}, l.bytesOf())
	l.to("1", state.EventStopped, "")
	require.Equal(t, [3]int64{8, 0, 0}, l.bytesOf())
}

func TestBadWakesElsewhere(t *testing.T) {
	for _, tt := range []struct {
		name   string
		memory map[string]int64
		event  state.Event
		edit   func(*log)
		want   error
		text   string
	}{
		{name: "no seat there", memory: map[string]int64{"n-GPU2": 8}, want: state.ErrConflict, text: `replica m:v:1 cannot wake on GPU "n-GPU2" of node n`},
		{name: "no GPU at all", memory: map[string]int64{"": 8}, want: state.ErrConflict, text: `replica m:v:1 cannot wake on GPU "" of node n`},
		{name: "more GPUs", memory: map[string]int64{"n-GPU0": 8, "n-GPU1": 8}, want: state.ErrBadRequest, text: "GPU memory to wake with is [8 8] bytes: must be [8]"},
		{name: "less memory", memory: map[string]int64{"n-GPU1": 7}, want: state.ErrBadRequest, text: "must be [8]"},
		{name: "no room", memory: map[string]int64{"n-GPU1": 8}, edit: func(l *log) { l.must(l.plan(place("other", "2", "n", 1, 1, 3))) }, want: state.ErrConflict, text: "GPU n-GPU1 on node n has 7 of 10 bytes free"},
		{name: "cordoned", memory: map[string]int64{"n-GPU1": 8}, edit: func(l *log) { l.must(&state.Cordon{Node: "n", GPU: "n-GPU1", On: true}) }, want: state.ErrConflict, text: "is cordoned"},
		{name: "as it is anyway", memory: map[string]int64{"n-GPU1": 8}, event: state.EventStarted, want: state.ErrBadRequest, text: `GPUs cannot change with event "started"`},
		{name: "not offered now", memory: map[string]int64{"n-GPU1": 8}, edit: func(l *log) { l.must(&state.UpsertNodes{Nodes: []state.Node{node("n", 1, 3, 10)}}) }, want: state.ErrConflict, text: "it has no seat there"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := wide(t)
			l.sleep("1")
			if tt.edit != nil {
				tt.edit(l)
			}
			c := l.move(name("m", "1"), state.EventWake, "")
			if tt.event != "" {
				c = l.move(name("m", "1"), tt.event, "")
			}
			c.Memory = tt.memory
			before := rowsOf(t, l.store.View())
			res := l.apply(c)
			require.ErrorIs(t, res.Err, tt.want)
			require.ErrorContains(t, res.Err, tt.text)
			require.Equal(t, before, rowsOf(t, l.store.View()))
		})
	}
	// A wake that is under way stays where it is.
	l := wide(t)
	l.sleep("1")
	l.to("1", state.EventWake, "")
	c := l.move(name("m", "1"), "", "")
	c.Memory = map[string]int64{"n-GPU1": 8}
	require.ErrorIs(t, l.apply(c).Err, state.ErrBadRequest)
}

// TestShapeWithReach: seats on all that it reaches, memory of as many as it uses.
func TestShapeWithReach(t *testing.T) {
	for _, tt := range []struct {
		name string
		edit func(*state.Place)
		text string
	}{
		{"good", func(*state.Place) {}, ""},
		{"too few seats", func(p *state.Place) { p.Placement.Seats = p.Placement.Seats[:1] }, `has seats on 1 GPUs: variant "v" needs 2`},
		{"memory of all", func(p *state.Place) { p.Placement.Memory["n-GPU0"] = 8 }, `takes memory of 2 GPUs: variant "v" needs 1`},
		{"memory of none", func(p *state.Place) { p.Placement.Memory = nil }, "replica m:v:2 takes no GPU memory"},
		{"memory without a seat", func(p *state.Place) {
			p.Placement.Seats = p.Placement.Seats[:1]
			p.Placement.Memory = map[string]int64{"n-GPU0": 8}
		}, "replica m:v:2 takes memory of GPU n-GPU0 but no seat on it"},
		{"sleep memory", func(p *state.Place) { p.Placement.SleepMemory = 9 }, "sleep memory of 9 bytes on GPU n-GPU1 is larger than its serving memory of 8 bytes"},
		{"no sleep memory", func(p *state.Place) { p.Placement.SleepMemory = -1 }, "host memory is 4 and sleep memory is -1"},
		{"two seats on one", func(p *state.Place) { p.Placement.Seats = append(p.Placement.Seats, "n-GPU1#2") }, "replica m:v:2 has 2 seats on GPU n-GPU1: must be 1"},
		{"of a version that does not exist", func(p *state.Place) { p.Version = 7 }, `model "m" has no version 7`},
		{"of a variant that its version lacks", func(p *state.Place) { p.Name.Variant = "w" }, `version 1 of model "m" has no variant "w"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := wide(t)
			p := widePlace("2", 1, 1)
			tt.edit(&p)
			res := l.apply(l.plan(p))
			if tt.text == "" {
				require.Nil(t, res.Err)
				return
			}
			require.NotNil(t, res.Err)
			require.ErrorContains(t, res.Err, tt.text)
		})
	}
}

func TestBadWarmFields(t *testing.T) {
	l := newLog(t)
	res := l.apply(&state.UpsertModel{Model: model("m", func(m *state.Model) {
		m.KeepWarm = m.Max + 1
		for range 3 {
			m.Variants = append(m.Variants, m.Variants[0])
		}
		for i := range m.Variants {
			m.Variants[i].Name = string(rune('a' + i))
		}
		m.Variants[0].Weights, m.Variants[0].SleepMemory = -1, -2
		m.Variants[1].SleepMemory = 11
		m.Variants[2].GPUs, m.Variants[2].Reach = 4, 2
		m.Variants[3].Reach = 17
	})})
	require.ErrorIs(t, res.Err, state.ErrBadRequest)
	require.Equal(t, strings.Join([]string{
		`keep_warm is 101: must be 0 to 100, the model's max`,
		`variant "a": weights is -1 bytes: must not be negative`,
		`variant "a": sleep memory is -2: must be 0 to 10, the variant's memory`,
		`variant "b": sleep memory is 11: must be 0 to 10, the variant's memory`,
		`variant "c": reach is 2 GPUs: must be 0, or 4 (the variant's GPUs) to 16`,
		`variant "d": reach is 17 GPUs: must be 0, or 1 (the variant's GPUs) to 16`,
	}, "\n"), res.Err.Message)
}

// TestFor is there while a replica goes, and no longer.
func TestFor(t *testing.T) {
	l := wide(t)
	going := func(event state.Event, goal state.Goal, who *string) *state.Move {
		c := l.move(name("m", "1"), event, goal)
		c.MakesRoomFor = who
		return c
	}
	require.ErrorContains(t, l.apply(going(state.EventFailed, "", ptr("other"))).Err, `evicted for model "other" while it is failed`)
	require.ErrorIs(t, l.apply(going(state.EventDrain, state.GoalWarm, ptr("a b"))).Err, state.ErrBadRequest)
	l.must(going(state.EventDrain, state.GoalWarm, ptr("other")))
	l.must(going(state.EventSleep, "", nil))
	require.Equal(t, "other", l.replica(name("m", "1")).MakesRoomFor)
	l.must(going(state.EventSlept, "", nil))
	require.Empty(t, l.replica(name("m", "1")).MakesRoomFor, "the room is there")
	l.must(going(state.EventStop, state.GoalCold, ptr("other")))
	require.Equal(t, "other", l.replica(name("m", "1")).MakesRoomFor)
	l.must(going(state.EventStop, state.GoalCold, ptr("")))
	require.Empty(t, l.replica(name("m", "1")).MakesRoomFor)

	l = wide(t)
	l.must(going(state.EventDrain, state.GoalWarm, ptr("other")))
	l.to("1", state.EventServing, "")
	require.Empty(t, l.replica(name("m", "1")).MakesRoomFor, "it was called off")
}

// TestSleepMemoryIsOfTheSleep: what a sleeping replica keeps is charged as it was measured.
func TestSleepMemoryIsOfTheSleep(t *testing.T) {
	l := wide(t)
	id := name("m", "1")
	serving := maps.Clone(l.replica(id).Holds().Memory)
	with := func(event state.Event, bytes int64) *state.Move {
		c := l.move(id, event, "")
		c.SleepMemory = &bytes
		return c
	}
	l.to("1", state.EventDrain, state.GoalWarm)
	require.ErrorContains(t, l.apply(with(state.EventSleep, 1)).Err, `cannot change with event "sleep": must be "slept"`)
	l.to("1", state.EventSleep, "")
	for _, bytes := range []int64{-1, 1 << 40} {
		require.ErrorContains(t, l.apply(with(state.EventSlept, bytes)).Err, fmt.Sprintf("while it sleeps is %d bytes: must be 0 to", bytes))
	}
	l.must(with(state.EventSlept, 3))
	for gpu := range serving {
		require.EqualValues(t, 3, l.store.View().Usage(nil, "n").Memory[gpu])
	}
	l.to("1", state.EventWake, "")
	require.Equal(t, serving, l.replica(id).Holds().Memory)
	l.to("1", state.EventServing, "")
	l.to("1", state.EventDrain, state.GoalWarm)
	l.to("1", state.EventSleep, "")
	l.must(with(state.EventSlept, 0))
	require.Zero(t, l.replica(id).Placement.SleepMemory)
	require.Empty(t, l.replica(id).Holds().Memory)
}

// TestRestingOnesDoNotCount: their model has room for others, and no rollout waits for
// them.
func TestRestingOnesDoNotCount(t *testing.T) {
	l := wide(t)
	l.must(l.plan(widePlace("2", 1, 1)))
	names := func(rs []*state.Replica) (all []string) {
		for _, r := range rs {
			all = append(all, r.Name.ID)
		}
		return all
	}
	l.to("1", state.EventDrain, state.GoalWarm)
	v := l.store.View()
	require.Equal(t, []string{"2"}, names(v.StayingOf(nil, "m")))
	require.Equal(t, []string{"1"}, names(v.RestingOf(nil, "m")))
	l.to("1", state.EventSleep, "")
	l.to("1", state.EventSlept, "")
	require.Equal(t, []string{"1"}, names(l.store.View().RestingOf(nil, "m")))
	l.to("1", state.EventWake, "")
	require.Equal(t, []string{"1", "2"}, names(l.store.View().StayingOf(nil, "m")))
	require.Empty(t, l.store.View().RestingOf(nil, "m"))
	l.to("1", state.EventSlept, "")
	l.to("2", state.EventStop, state.GoalGone)
	changed := *l.model("m")
	changed.Variants = []state.Variant{changed.Variants[0]}
	changed.Hash, changed.Variants[0].Hash = "h2", "vh2"
	l.must(&state.UpsertModel{Model: changed, ModifyIndex: changed.ModifyIndex, Time: later})
	require.Empty(t, l.model("m").Rollouts, "nobody serves with the old definition")
	require.Equal(t, "vh1", l.madeFrom(name("m", "1")))
}

// TestWaysOfThePlanner are those that evictions, wakes and their failures take, each
// from a replica that serves on GPU0 to where it ends, with what it then holds.
func TestWaysOfThePlanner(t *testing.T) {
	const (
		drain  = "drain warm"
		sleep  = "sleep"
		warm   = "slept"
		wake   = "wake"
		serve  = "serving"
		stop   = "stop cold"
		end    = "stop gone"
		unwarm = "stop cold"
		cold   = "stopped"
	)
	for name, tt := range map[string]struct {
		way   []string
		holds [3]int64
	}{
		"slept and woken":                    {[]string{drain, sleep, warm, wake, serve}, [3]int64{8, 0, 0}},
		"drain called off":                   {[]string{drain, serve}, [3]int64{8, 0, 0}},
		"sleep called off":                   {[]string{drain, sleep, serve}, [3]int64{8, 0, 0}},
		"drained, no room in RAM":            {[]string{drain, stop, cold}, [3]int64{}},
		"drained for WARM, then for COLD":    {[]string{drain, "drain cold", stop, cold}, [3]int64{}},
		"drained for COLD, then for WARM":    {[]string{"drain cold", drain, sleep, warm}, [3]int64{2, 0, 4}},
		"cannot sleep":                       {[]string{drain, sleep, stop, cold}, [3]int64{}},
		"memory that does not come back":     {[]string{drain, sleep, stop}, [3]int64{8, 0, 0}},
		"cooled":                             {[]string{drain, sleep, warm, unwarm, cold}, [3]int64{}},
		"cooled for good":                    {[]string{drain, sleep, warm, "stop gone"}, [3]int64{2, 0, 4}},
		"failed wake":                        {[]string{drain, sleep, warm, wake, stop, cold}, [3]int64{}},
		"failed wake of no use":              {[]string{drain, sleep, warm, wake, end}, [3]int64{8, 0, 0}},
		"wake called off":                    {[]string{drain, sleep, warm, wake, warm}, [3]int64{2, 0, 4}},
		"process restarted while it woke":    {[]string{drain, sleep, warm, wake, "started", serve}, [3]int64{8, 0, 0}},
		"process restarted while it drained": {[]string{drain, "started", serve}, [3]int64{8, 0, 0}},
		"failed and evicted":                 {[]string{"failed", stop, cold}, [3]int64{}},
	} {
		t.Run(name, func(t *testing.T) {
			l := wide(t)
			for _, s := range tt.way {
				words := append(strings.Fields(s), "")
				l.to("1", state.Event(words[0]), state.Goal(words[1]))
			}
			require.Equal(t, tt.holds, l.bytesOf())
		})
	}
}
