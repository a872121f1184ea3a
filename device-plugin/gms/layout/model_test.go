package layout_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/device-plugin/gms/layout"
	"remuda/internal/testkit/long"
)

// phase is where a session of the model is.
type phase int

const (
	waiting phase = iota
	offered
	opened
)

type modelSession struct {
	id    layout.SessionID
	asked layout.Mode
	got   layout.Mode
	phase phase
}

// checks is what the tests and rapid have in common.
type checks interface {
	require.TestingT
	Helper()
}

// model is a second, slow reading of the page: what must hold after each step is
// worked out anew from the sessions.
type model struct {
	t checks
	m *layout.Machine
	// choose picks a number below n.
	choose func(n int) int

	lastID    layout.SessionID
	sessions  []*modelSession // in the order in which they came
	committed bool
	live      []layout.Allocation
	nextSlot  uint64
	seen      map[string]bool // every ID ever
	metadata  map[string]layout.Entry
	events    []layout.Event
	hash      string
}

func newModel(t checks, choose func(n int) int) *model {
	x := &model{t: t, choose: choose, seen: map[string]bool{}, metadata: map[string]layout.Entry{}}
	x.m = layout.New(numbered())
	return x
}

func (x *model) event(kind string, n int) {
	x.events = append(x.events, layout.Event{Kind: kind, Allocations: n})
	x.events = x.events[max(0, len(x.events)-layout.MaxEvents):]
}

func (x *model) of(p phase) (out []*modelSession) {
	for _, s := range x.sessions {
		if s.phase == p {
			out = append(out, s)
		}
	}
	return out
}

func (x *model) holder(mode layout.Mode) bool {
	return slices.ContainsFunc(x.sessions, func(s *modelSession) bool { return s.phase != waiting && s.got == mode })
}

// expected works out who must be let in now, one by one.
func (x *model) expected() (out []layout.Offer) {
	for {
		var next *modelSession
		var mode layout.Mode
		writerWaits := slices.ContainsFunc(x.of(waiting), func(s *modelSession) bool { return s.asked == layout.Writer })
		for _, s := range x.of(waiting) {
			wantsToWrite := s.asked == layout.Writer || (s.asked == layout.Auto && !x.committed)
			switch {
			case wantsToWrite && !x.holder(layout.Writer) && !x.holder(layout.Reader):
				next, mode = s, layout.Writer
			case !wantsToWrite && x.committed && !x.holder(layout.Writer) && !writerWaits:
				next, mode = s, layout.Reader
			}
			if next != nil {
				break
			}
		}
		if next == nil {
			return out
		}
		next.phase, next.got = offered, mode
		out = append(out, layout.Offer{Session: next.id, Mode: mode})
	}
}

func (x *model) drop(s *modelSession) {
	x.sessions = slices.DeleteFunc(x.sessions, func(o *modelSession) bool { return o == s })
}

func (x *model) clear() (freed []layout.Allocation) {
	freed, x.live, x.nextSlot, x.hash = x.live, nil, 0, ""
	clear(x.metadata)
	return freed
}

// effects compares what the machine asks for with what the page says.
func (x *model) effects(e layout.Effects, freed []layout.Allocation) {
	x.t.Helper()
	require.ElementsMatch(x.t, freed, e.Freed)
	require.Equal(x.t, x.expected(), e.Offers)
}

func (x *model) session(p phase) *modelSession {
	all := x.of(p)
	if len(all) == 0 {
		return nil
	}
	return all[x.choose(len(all))]
}

// allocation picks one that is there, or the ID of one that is not.
func (x *model) allocation() (layout.Allocation, bool) {
	if n := len(x.live); n > 0 && x.choose(5) > 0 {
		return x.live[x.choose(n)], true
	}
	return layout.Allocation{ID: "nobody"}, false
}

// step does one thing.
func (x *model) step() {
	switch x.choose(12) {
	case 0, 1:
		x.lastID++
		s := &modelSession{id: x.lastID, asked: []layout.Mode{layout.Writer, layout.Reader, layout.Auto}[x.choose(3)]}
		x.sessions = append(x.sessions, s)
		x.effects(x.m.Connect(s.id, s.asked), nil)
	case 2:
		x.accept()
	case 3:
		x.leave()
	case 4:
		if s := x.session(phase(x.choose(3))); s != nil {
			was := s.phase == waiting
			if was {
				x.drop(s)
			}
			gaveUp, e := x.m.GiveUp(s.id)
			require.Equal(x.t, was, gaveUp)
			x.effects(e, nil)
		}
	default:
		if s := x.session(opened); s != nil {
			x.request(s)
		}
	}
	x.check()
}

func (x *model) accept() {
	s := x.session(offered)
	if s == nil {
		return
	}
	s.phase = opened
	a, e, err := x.m.Accept(s.id)
	require.NoError(x.t, err)
	if s.got == layout.Reader {
		require.Equal(x.t, layout.Accepted{Mode: layout.Reader, Committed: true, Hash: x.hash}, a)
		x.effects(e, nil)
		return
	}
	had := x.committed
	x.committed = false
	freed := x.clear()
	if had {
		x.event(layout.EventCleared, len(freed))
	}
	x.event(layout.EventConnected, 0)
	require.Equal(x.t, layout.Accepted{Mode: layout.Writer, Cleared: had}, a)
	x.effects(e, freed)
}

func (x *model) leave() {
	s := x.session(phase(x.choose(3)))
	if s == nil {
		return
	}
	x.drop(s)
	var freed []layout.Allocation
	if s.phase == opened && s.got == layout.Writer {
		freed = x.clear()
		x.event(layout.EventAborted, 0)
		x.event(layout.EventCleared, len(freed))
	}
	x.effects(x.m.Leave(s.id), freed)
}

// request is something that an open session asks for.
func (x *model) request(s *modelSession) {
	writer := s.got == layout.Writer
	allowed := func(err error) bool {
		if !writer {
			require.ErrorIs(x.t, err, layout.ErrNotAllowed)
		}
		return writer
	}
	key := fmt.Sprintf("k%d", x.choose(4))
	switch x.choose(6) {
	case 0, 1:
		size := uint64(x.choose(40) + 1)
		aligned, err := layout.Align(int64(size), 16)
		require.NoError(x.t, err)
		tag := []string{"", "x", "y"}[x.choose(3)]
		a, err := x.m.Allocate(s.id, size, aligned, tag)
		if allowed(err) {
			require.NoError(x.t, err)
			require.False(x.t, x.seen[a.ID], "the ID %q again", a.ID)
			x.seen[a.ID] = true
			require.Equal(x.t, layout.Allocation{ID: a.ID, Size: size, AlignedSize: aligned, Tag: tag, Slot: x.nextSlot}, a)
			x.nextSlot++
			x.live = append(x.live, a)
		}
	case 2:
		a, there := x.allocation()
		found, e, err := x.m.Free(s.id, a.ID)
		if allowed(err) {
			require.NoError(x.t, err)
			require.Equal(x.t, there, found)
			var freed []layout.Allocation
			if there {
				freed = []layout.Allocation{a}
				x.live = slices.DeleteFunc(x.live, func(o layout.Allocation) bool { return o == a })
				maps.DeleteFunc(x.metadata, func(_ string, m layout.Entry) bool { return m.AllocationID == a.ID })
			}
			x.effects(e, freed)
		}
	case 3:
		a, there := x.allocation()
		offset := int64(x.choose(40)) - 4
		value := make([]byte, x.choose(3))
		err := x.m.Put(s.id, key, a.ID, offset, value)
		switch {
		case !allowed(err):
		case !there:
			require.ErrorIs(x.t, err, layout.ErrNotFound)
		case offset < 0 || uint64(offset) >= a.AlignedSize:
			require.ErrorIs(x.t, err, layout.ErrBadValue)
		default:
			require.NoError(x.t, err)
			x.metadata[key] = layout.Entry{AllocationID: a.ID, Offset: uint64(offset), Value: value}
		}
	case 4:
		_, there := x.metadata[key]
		deleted, err := x.m.Delete(s.id, key)
		if allowed(err) {
			require.NoError(x.t, err)
			require.Equal(x.t, there, deleted)
			delete(x.metadata, key)
		}
	case 5:
		e, err := x.m.Commit(s.id)
		if allowed(err) {
			require.NoError(x.t, err)
			x.hash, x.committed = x.computeHash(), true
			x.drop(s)
			x.event(layout.EventCommitted, 0)
			x.effects(e, nil)
		}
	}
}

// computeHash is written from the page.
func (x *model) computeHash() string {
	text := ""
	rank := map[string]int{}
	for i, a := range x.live { // they are in the order of their slots
		rank[a.ID] = i
		text += fmt.Sprintf("%d:%d:%d:%s", i, a.Size, a.AlignedSize, a.Tag)
	}
	keys := slices.Collect(maps.Keys(x.metadata))
	sort.Strings(keys)
	for _, k := range keys {
		e := x.metadata[k]
		text += fmt.Sprintf("%s:%d:%d:%s", k, rank[e.AllocationID], e.Offset, e.Value)
	}
	h := sha256.Sum256([]byte(text))
	return hex.EncodeToString(h[:])
}

// check compares all that can be seen.
func (x *model) check() {
	want := layout.Status{State: layout.Empty, Committed: x.committed, Allocations: len(x.live), Hash: x.hash}
	for _, s := range x.sessions {
		switch {
		case s.phase == waiting && s.asked == layout.Writer:
			want.Waiting++
		case s.phase == opened && s.got == layout.Writer:
			require.False(x.t, want.HasWriter, "two writers")
			want.HasWriter = true
		case s.phase == opened:
			want.Readers++
		}
	}
	require.False(x.t, want.HasWriter && want.Readers > 0, "a writer beside readers")
	switch {
	case want.HasWriter:
		want.State = layout.Writing
	case want.Readers > 0:
		want.State = layout.Reading
	case want.Committed:
		want.State = layout.Committed
	}
	require.Equal(x.t, want, x.m.Status())
	require.Equal(x.t, len(x.events), len(x.m.Events()))
	require.Equal(x.t, x.computeHash(), x.m.Snapshot().Hash)
	if n := len(x.events); n > 0 {
		require.Equal(x.t, x.events[n-1], x.m.Events()[n-1])
	}
	for _, s := range x.of(opened) {
		list, err := x.m.List(s.id, nil)
		require.NoError(x.t, err)
		require.ElementsMatch(x.t, x.live, list)
		keys, err := x.m.Keys(s.id, "")
		require.NoError(x.t, err)
		require.Len(x.t, keys, len(x.metadata))
	}
	if x.committed {
		again, err := layout.Restore(numbered(), x.m.Snapshot())
		require.NoError(x.t, err)
		require.Equal(x.t, x.m.Snapshot(), again.Snapshot())
	}
}

// done compares the whole history.
func (x *model) done() {
	if len(x.events) > 0 {
		require.Equal(x.t, x.events, x.m.Events())
	}
}

// TestModel drives the machine and the model through the same random steps.
func TestModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		x := newModel(r, func(n int) int { return rapid.IntRange(0, n-1).Draw(r, "choice") })
		for range rapid.IntRange(1, long.Pick(40, 120)).Draw(r, "steps") {
			x.step()
		}
		x.done()
	})
}

// TestModelForLong reaches what short runs do not, as a full history.
func TestModelForLong(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	x := newModel(t, random.IntN)
	for range 20_000 {
		// Few sessions at a time, so that most of them get somewhere.
		for len(x.sessions) > 6 {
			x.leave()
		}
		x.step()
	}
	x.done()
	require.Len(t, x.events, layout.MaxEvents)
}

// FuzzMachine takes its steps from the fuzzer's bytes.
func FuzzMachine(f *testing.F) {
	f.Add([]byte{0, 0, 2, 0, 5, 0, 9, 1, 5, 0, 5, 0, 0, 1, 2, 0})
	f.Add([]byte{0, 2, 0, 2, 2, 0, 3, 2, 0, 2, 0})
	f.Add([]byte("a writer, a reader and a long run of requests of both of them"))
	seed := rand.New(rand.NewPCG(3, 4))
	for range 8 {
		raw := make([]byte, 200)
		for i := range raw {
			raw[i] = byte(seed.IntN(256))
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, steps []byte) {
		x := newModel(t, func(n int) int {
			if len(steps) == 0 {
				return 0
			}
			v := int(steps[0]) % n
			steps = steps[1:]
			return v
		})
		for n := 0; len(steps) > 0 && n < 500; n++ {
			x.step()
		}
		x.done()
	})
}
