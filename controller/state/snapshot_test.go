package state_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/state"
)

// full is a store with rows in every table. The model m is in the middle of a rollout
// and its variant has a number.
func full(t *testing.T) *log {
	l := ready(t)
	changed := model("m", func(m *state.Model) { m.Hash, m.Variants[0].Hash = "h2", "vh2" })
	l.must(l.plan(place("m", "1", "n", 0, 0, 10), place("m", "2", "n", 1, 0, 10)))
	l.serve(name("m", "1"))
	l.must(&state.UpsertModel{Model: changed, ModifyIndex: 1, Time: epoch},
		&state.ScaleRequest{Model: "m", Variants: map[string]int{"v": 2}, Origin: state.OriginOperator},
		&state.Plan{ID: "p", Decisions: []state.Decision{{Kind: "k", Time: epoch, Model: "m"}}},
		&state.SetSwitch{Name: "s", Value: "v"},
		&state.UpsertToken{Token: state.Token{Accessor: "a", Role: state.RoleOperator, Hash: state.HashSecret("x"), CreatedAt: epoch}},
		&state.ScaleRequest{Model: "m", Pool: "east", Replicas: ptr(1), Origin: state.OriginOperator},
		&state.SetDedicated{Models: map[string]int{"m": 1}, Time: epoch},
		&state.SetSchedule{File: "window"},
		&state.Plan{ID: "p", Time: epoch, Pace: &state.Pace{Pruned: epoch, Left: map[string]time.Time{"east": epoch}}})
	return l
}

func TestSnapshotHasEverything(t *testing.T) {
	l := full(t)
	data := snapshotOf(t, l.store)
	info, err := state.Inspect(bytes.NewReader(data), state.FeatureLevel)
	require.NoError(t, err)
	require.Equal(t, state.SnapshotInfo{
		Version: 1, FeatureLevel: state.FeatureLevel, Index: l.index, Bytes: int64(len(data)),
		Rows: map[state.Table]int{state.TableModels: 1, state.TableVersions: 2, state.TableNodes: 1, state.TableReplicas: 2, state.TableDecisions: 1, state.TableSwitches: 1, state.TableTokens: 1, state.TableDedicated: 1, state.TableSchedule: 1, state.TablePace: 1},
	}, info)

	s := restored(t, data)
	a, b := l.store.View(), s.View()
	require.Equal(t, a.Index(), b.Index())
	require.Equal(t, a.Models(nil), b.Models(nil))
	require.Equal(t, "v=1 v@east=1", text(b.Model(nil, "m").Desired))
	require.Equal(t, state.Rollout{Status: state.RolloutCanary, Version: 2, Since: epoch}, b.Model(nil, "m").Rollouts["v"])
	require.Equal(t, a.Versions(nil, "m"), b.Versions(nil, "m"))
	require.Equal(t, "vh1", b.VariantOf(nil, b.Replica(nil, "m:v:1")).Hash)
	require.Equal(t, a.Nodes(nil), b.Nodes(nil))
	require.Equal(t, a.Replicas(nil), b.Replicas(nil))
	require.Equal(t, a.Decisions(nil, "", 0), b.Decisions(nil, "", 0))
	require.Equal(t, a.Switches(nil), b.Switches(nil))
	require.Equal(t, a.Tokens(nil), b.Tokens(nil))
	require.Equal(t, a.Ledger(nil), b.Ledger(nil))
	require.Equal(t, map[string]int{"m": 1}, b.Dedicated(nil).Models)
	require.Equal(t, a.Dedicated(nil), b.Dedicated(nil))
	require.Equal(t, "window", b.Schedule(nil).File)
	require.Equal(t, a.Schedule(nil), b.Schedule(nil))
	require.Equal(t, &state.Pace{Pruned: epoch, Left: map[string]time.Time{"east": epoch}}, b.Pace(nil))
	for _, table := range []state.Table{state.TableModels, state.TableNodes, state.TableReplicas, state.TableDecisions, state.TableSwitches, state.TableTokens, state.TableDedicated, state.TableSchedule, state.TablePace} {
		require.Equal(t, a.TableIndex(table), b.TableIndex(table))
	}
}

func TestSnapshotDoesNotSeeLaterCommands(t *testing.T) {
	l := full(t)
	want := snapshotOf(t, l.store)
	v := l.store.View()
	l.must(&state.SetSwitch{Name: "later", Value: "v"})
	var got bytes.Buffer
	_, err := v.WriteSnapshot(&got, state.FeatureLevel)
	require.NoError(t, err)
	require.Equal(t, want, got.Bytes())
}

// refused checks that a snapshot is refused, by Inspect as well, and that nothing
// changed.
func refused(t *testing.T, r func() io.Reader, want error) {
	t.Helper()
	l := full(t)
	before := snapshotOf(t, l.store)
	_, err := l.store.Restore(r(), state.FeatureLevel)
	require.ErrorIs(t, err, want)
	_, err = state.Inspect(r(), state.FeatureLevel)
	require.ErrorIs(t, err, want)
	require.Equal(t, before, snapshotOf(t, l.store))
}

func TestDamagedSnapshotsAreRefused(t *testing.T) {
	l := newLog(t)
	l.must(&state.UpsertModel{Model: model("m")}, &state.SetSwitch{Name: "s", Value: "v"})
	data := snapshotOf(t, l.store)
	for n := range data {
		refused(t, func() io.Reader { return bytes.NewReader(data[:n]) }, state.ErrSnapshotDamaged)
	}
	refused(t, func() io.Reader { return bytes.NewReader(append(bytes.Clone(data), 0)) }, state.ErrSnapshotDamaged)
	for i := range data {
		changed := bytes.Clone(data)
		changed[i] ^= 1
		want := state.ErrSnapshotDamaged
		at := len("remuda-state")
		version, level := binary.BigEndian.Uint32(changed[at:]), binary.BigEndian.Uint32(changed[at+4:])
		if version > state.SnapshotVersion || level > state.FeatureLevel {
			want = state.ErrSnapshotNewer
		}
		refused(t, func() io.Reader { return bytes.NewReader(changed) }, want)
	}
}

func TestNewerSnapshotIsRefused(t *testing.T) {
	const format, level = len("remuda-state"), len("remuda-state") + 4
	whole := snapshotOf(t, full(t).store)
	for at, message := range map[int]string{
		format: fmt.Sprintf("its format is version %d, and this one reads up to %d: upgrade remuda", state.SnapshotVersion+1, state.SnapshotVersion),
		level:  fmt.Sprintf("it needs feature level %d, and this one has %d: upgrade remuda", state.FeatureLevel+1, state.FeatureLevel),
	} {
		data := bytes.Clone(whole)
		binary.BigEndian.PutUint32(data[at:], binary.BigEndian.Uint32(data[at:])+1)
		refused(t, func() io.Reader { return bytes.NewReader(data) }, state.ErrSnapshotNewer)
		_, err := state.Inspect(bytes.NewReader(data), state.FeatureLevel)
		require.ErrorContains(t, err, message)
		binary.BigEndian.PutUint32(data[at:], 0)
		refused(t, func() io.Reader { return bytes.NewReader(data) }, state.ErrSnapshotDamaged)
	}

	// A server of a higher level reads it, and reports the level.
	var next bytes.Buffer
	_, err := full(t).store.View().WriteSnapshot(&next, state.FeatureLevel+1)
	require.NoError(t, err)
	info, err := state.Inspect(bytes.NewReader(next.Bytes()), state.FeatureLevel+1)
	require.NoError(t, err)
	require.Equal(t, state.FeatureLevel+1, info.FeatureLevel)
	refused(t, func() io.Reader { return bytes.NewReader(next.Bytes()) }, state.ErrSnapshotNewer)
}

func TestBrokenReaderIsNotDamage(t *testing.T) {
	broken := errors.New("the disk is on fire")
	data := snapshotOf(t, full(t).store)
	refused(t, func() io.Reader {
		return io.MultiReader(bytes.NewReader(data[:200]), iotest.ErrReader(broken))
	}, broken)
	_, err := full(t).store.View().WriteSnapshot(failingWriter{broken}, state.FeatureLevel)
	require.ErrorIs(t, err, broken)
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

// withRecord adds records of one kind to a snapshot and makes its end right again.
func withRecord(data []byte, kind byte, bodies ...string) []byte {
	end := len(data) - sha256.Size - 9
	out := bytes.Clone(data[:end])
	for _, body := range bodies {
		out = append(out, kind)
		out = binary.BigEndian.AppendUint32(out, uint32(len(body)))
		out = append(out, body...)
	}
	out = append(out, 0)
	out = binary.BigEndian.AppendUint64(out, binary.BigEndian.Uint64(data[end+1:])+uint64(len(bodies)))
	sum := sha256.Sum256(out)
	return append(out, sum[:]...)
}

func TestUnknownRecords(t *testing.T) {
	l := full(t)
	data := snapshotOf(t, l.store)
	refused(t, func() io.Reader { return bytes.NewReader(withRecord(data, 99, "{}")) }, state.ErrSnapshotDamaged)
	refused(t, func() io.Reader { return bytes.NewReader(withRecord(data, 1, "{")) }, state.ErrSnapshotDamaged)
	for _, kind := range []byte{1, 7, 8, 9} {
		refused(t, func() io.Reader { return bytes.NewReader(withRecord(data, kind, "{}")) }, state.ErrSnapshotDamaged)
	}
	strange := withRecord(data, 5, `{"Name":"t","Value":"v","Colour":"red"}`)
	refused(t, func() io.Reader { return bytes.NewReader(strange) }, state.ErrSnapshotNewer)
	strange[len(strange)-1]++
	refused(t, func() io.Reader { return bytes.NewReader(strange) }, state.ErrSnapshotDamaged)
}

func FuzzRestore(f *testing.F) {
	l := newLog(f)
	l.must(&state.UpsertModel{Model: model("m")}, &state.SetSwitch{Name: "s", Value: "v"})
	data := snapshotOf(f, l.store)
	f.Add(data)
	f.Add(withRecord(data, 0x80|99, "whatever"))
	f.Add(withRecord(data, 1, "{}"))
	f.Add(withRecord(data, 5, `{"Name":"t"}`))
	f.Add(withRecord(data, 1, `{"Name":"n","Desired":[{"Variant":"v","Replicas":-1},{"Variant":"w","Replicas":3},{"Variant":"v","Replicas":2}],"Rollouts":{"v":{"Status":"canary","Version":2,"Since":"2026-01-02T03:04:05Z"}}}`))
	f.Add(withRecord(data, 12, `{"Number":-1,"Model":{"Name":"m","Variants":[{"Name":"v","Hash":"a"}]}}`))
	f.Add(withRecord(data, 3, `{"Name":{"Model":"m","Variant":"v","ID":"1"},"Version":1,"Status":"draining","Goal":"cold","Placement":{"Node":"n"}}`))
	f.Add(withRecord(data, 2, `{"ID":"n","CapacityPool":"east","GPUs":[{"UUID":"g","Cordoned":true,"CordonReason":"held"}]}`))
	f.Add(withRecord(data, 3, `{"Name":{"Model":"m","Variant":"v","ID":"1"},"Status":"warm","Goal":"warm","For":"b","Placement":{"Node":"n","Memory":{"g":5},"SleepMemory":9}}`))
	f.Add(withRecord(data, 1, `{"Name":"e","Max":3,"Desired":[{"Pool":"b","Replicas":9},{"Pool":"a","Replicas":-1}]}`))
	f.Add(withRecord(data, 7, `{"Models":{"m":-1,"gone":2},"Source":"operator","Since":"2026-01-02T03:04:05Z"}`))
	f.Add(withRecord(data, 8, `{"File":"window"}`))
	f.Add(withRecord(data, 9, `{"Key":"evicted","Time":"2026-01-02T03:04:05Z"}`))
	f.Add(withRecord(data, 10, `{"Name":"m","Source":"x","Models":["m"]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := state.New()
		require.NoError(t, err)
		if _, err := s.Restore(bytes.NewReader(data), state.FeatureLevel); err != nil {
			require.Equal(t, uint64(0), s.View().Index())
			return
		}
		checkInvariantsOfRows(t, s.View())
		// What was restored is no cause to panic, whatever it is, and is written again.
		snapshot := snapshotOf(t, s)
		require.True(t, bytes.Equal(snapshot, snapshotOf(t, restored(t, snapshot))))
		for _, m := range s.View().Models(nil) {
			variant := "v"
			if len(m.Variants) > 0 {
				variant = m.Variants[0].Name
			}
			l := &log{t: t, store: s, index: s.View().Index()}
			for _, c := range []any{
				&state.ScaleRequest{Model: m.Name, Variants: map[string]int{variant: 1}, Origin: state.OriginOperator},
				&state.EvictRequest{Model: m.Name, Force: true, To: state.GoalWarm, Time: epoch},
				&state.ScaleRequest{Model: m.Name, Pool: "east", Replicas: ptr(1), Origin: state.OriginOperator},
				&state.SetDedicated{Models: map[string]int{m.Name: 1}, Time: epoch},
				&state.SetDedicated{Time: epoch},
				&state.EvictRequest{Model: m.Name, Force: true, To: state.GoalGone, Time: epoch},
				&state.UpsertModel{Model: model(m.Name), ModifyIndex: m.ModifyIndex, Time: epoch},
			} {
				l.apply(c)
			}
			for _, r := range s.View().StayingOf(nil, m.Name) {
				s.View().VariantOf(nil, r)
			}
		}
	})
}

// checkInvariantsOfRows reads everything that was restored.
func checkInvariantsOfRows(t *testing.T, v *state.View) {
	for _, r := range v.Replicas(nil) {
		require.NotNil(t, v.Replica(nil, r.Name.String()))
		require.NotNil(t, v.Usage(nil, r.Placement.Node))
	}
}

// many is a store with n replicas, 8 to a node.
func many(tb testing.TB, n int) *log {
	l := newLog(tb)
	l.must(&state.UpsertModel{Model: model("m")})
	const gpus = 8
	for first := 0; first < n; first += gpus {
		id := fmt.Sprintf("a2c1d9e0-node-%08d", first/gpus)
		l.must(&state.UpsertNodes{Nodes: []state.Node{node(id, gpus, 2, 80<<30)}})
		c := l.plan()
		for g := range gpus {
			c.Place = append(c.Place, place("m", fmt.Sprintf("7f3a0c1e-4b5d-4e6f-8a9b-%012d", first+g), id, g, 0, 60<<30))
		}
		l.must(c)
	}
	return l
}

func BenchmarkSnapshot100k(b *testing.B) {
	l := many(b, 100_000)
	var data bytes.Buffer
	b.Run("write", func(b *testing.B) {
		for b.Loop() {
			data.Reset()
			if _, err := l.store.View().WriteSnapshot(&data, state.FeatureLevel); err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(data.Len()))
		}
	})
	b.Run("restore", func(b *testing.B) {
		s, err := state.New()
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(data.Len()))
		for b.Loop() {
			if _, err := s.Restore(bytes.NewReader(data.Bytes()), state.FeatureLevel); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("ledger", func(b *testing.B) {
		for b.Loop() {
			l.store.View().Ledger(nil)
		}
	})
}

func BenchmarkApplyPlace(b *testing.B) {
	l := newLog(b)
	l.must(&state.UpsertModel{Model: model("m")})
	var commands [][]byte
	bytes := 0
	for i := range b.N {
		if i%16 == 0 {
			l.must(&state.UpsertNodes{Nodes: []state.Node{node(fmt.Sprintf("n%d", i/16), 8, 2, 80<<30)}})
		}
		data, err := state.Encode(l.plan(place("m", fmt.Sprint(i), fmt.Sprintf("n%d", i/16), i%8, i/8%2, 30<<30)))
		if err != nil {
			b.Fatal(err)
		}
		bytes += len(data)
		commands = append(commands, data)
	}
	b.ResetTimer()
	for _, data := range commands {
		if res := l.applyBytes(data); res.Err != nil {
			b.Fatal(res.Err)
		}
	}
	// After the loop: ResetTimer forgets what was reported before it.
	b.ReportMetric(float64(bytes)/float64(b.N), "log-B/op")
}
