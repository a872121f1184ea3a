package state_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/controller/state"
)

func scalerOf(name, memory string) *state.SetScaler {
	return &state.SetScaler{Name: name, State: memory}
}

func TestScalers(t *testing.T) {
	l := newLog(t)
	require.Equal(t, uint64(1), l.store.View().TableIndex(state.TableScalers))
	l.must(scalerOf("hpa/m", "[1]"))
	require.Equal(t, &state.Scaler{Name: "hpa/m", State: "[1]", CreateIndex: 1, ModifyIndex: 1}, l.store.View().Scaler(nil, "hpa/m"))
	require.False(t, l.apply(scalerOf("hpa/m", "[1]")).Changed, "who does not compare changes nothing with the same")

	// Of two who compare with the same index one is taken, also where both say the same.
	claim := &state.SetScaler{Name: "hpa/m", State: "[1]", ModifyIndex: ptr(uint64(1))}
	l.must(claim)
	require.ErrorIs(t, l.apply(claim).Err, state.ErrConflict)
	now := l.store.View().Scaler(nil, "hpa/m")
	require.Equal(t, uint64(1), now.CreateIndex)
	require.Equal(t, uint64(3), now.ModifyIndex)

	require.ErrorIs(t, l.apply(&state.SetScaler{Name: "hpa/m", State: "[2]", ModifyIndex: ptr(uint64(0))}).Err, state.ErrConflict, "it exists")
	require.ErrorIs(t, l.apply(&state.SetScaler{Name: "x", State: "[2]", ModifyIndex: ptr(uint64(3))}).Err, state.ErrNotFound)
	l.must(&state.SetScaler{Name: "x", State: "[2]", ModifyIndex: ptr(uint64(0))})
	require.Len(t, l.store.View().Scalers(nil), 2)
	require.ErrorIs(t, l.apply(&state.SetScaler{Name: "x", Delete: true, ModifyIndex: ptr(uint64(1))}).Err, state.ErrConflict)
	l.must(&state.SetScaler{Name: "x", Delete: true})
	require.ErrorIs(t, l.apply(&state.SetScaler{Name: "x", Delete: true}).Err, state.ErrNotFound)
	require.Nil(t, l.store.View().Scaler(nil, "x"))
}

func TestBadScalers(t *testing.T) {
	largest := `"` + strings.Repeat("x", state.MaxScalerState-2) + `"`
	for _, tt := range []struct {
		name, scaler, memory, text string
	}{
		{"no name", "", "1", "scaler name is empty"},
		{"a space in the name", "a b", "1", `scaler name is "a b"`},
		{"a long name", strings.Repeat("x", 129), "1", "is 129 bytes"},
		{"nothing", "s", "", "must be a JSON value"},
		{"null", "s", "null", "must be a JSON value"},
		{"half", "s", `{"a":`, "must be a JSON value"},
		{"two", "s", `1 2`, "must be a JSON value"},
		{"too long", "s", largest + " ", `state of scaler "s" is 65537 bytes: must be at most 65536 bytes`},
		{"both", "", "", "must be a JSON value"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLog(t)
			res := l.apply(scalerOf(tt.scaler, tt.memory))
			require.ErrorIs(t, res.Err, state.ErrBadRequest)
			require.ErrorContains(t, res.Err, tt.text)
			require.Empty(t, l.store.View().Scalers(nil))
		})
	}
	l := newLog(t)
	l.must(scalerOf("s", largest), scalerOf(strings.Repeat("x", 128), "false"))
}

func TestSoManyScalersAndNoMore(t *testing.T) {
	const scalerRecord = 11
	rows := make([]string, state.MaxScalers-1)
	for i := range rows {
		rows[i] = fmt.Sprintf(`{"Name":"s%d","State":"1","CreateIndex":1,"ModifyIndex":1}`, i)
	}
	l := newLog(t)
	l.must(scalerOf("last", "1"))
	l.store = restored(t, withRecord(snapshotOf(t, l.store), scalerRecord, rows...))
	l.must(&state.SetScaler{Name: "last", Delete: true}, scalerOf("last", "1"))
	res := l.apply(scalerOf("more", "1"))
	require.ErrorIs(t, res.Err, state.ErrBadRequest)
	require.ErrorContains(t, res.Err, "the limit of 10000 scalers is reached")
	l.must(scalerOf("s7", "2"), &state.SetScaler{Name: "s8", Delete: true}, scalerOf("more", "1"))
}

func TestSnapshotsOfScalers(t *testing.T) {
	l := newLog(t)
	l.must(scalerOf("s", `{"<":"\u2028"}`))
	data := snapshotOf(t, l.store)
	again := restored(t, data)
	require.Equal(t, data, snapshotOf(t, again))
	require.Equal(t, l.store.View().Scalers(nil), again.View().Scalers(nil))
	require.Equal(t, `{"<":"\u2028"}`, again.View().Scaler(nil, "s").State, "byte by byte")
	require.Equal(t, l.index, again.View().TableIndex(state.TableScalers))
}

// TestScalersAsAMap compares the store with the simplest thing that could do it.
func TestScalersAsAMap(t *testing.T) {
	type row struct {
		memory        string
		created, last uint64
	}
	rapid.Check(t, func(t *rapid.T) {
		l := newLog(t)
		want := map[string]row{}
		for range between(1, 60).Draw(t, "commands") {
			c := drawScaler(t, l.store.View())
			had, there := want[c.Name]
			res := l.apply(c)
			good := c.ModifyIndex == nil || *c.ModifyIndex == had.last
			good = good && (!c.Delete || there) && (c.Delete || c.State != "no")
			require.Equal(t, good, res.Err == nil, "%+v: %v", c, res.Err)
			switch {
			case !good:
			case c.Delete:
				delete(want, c.Name)
			case there && c.ModifyIndex == nil && had.memory == c.State:
				require.False(t, res.Changed)
			default:
				require.True(t, res.Changed)
				if !there {
					had.created = l.index
				}
				want[c.Name] = row{c.State, had.created, l.index}
			}
			if rapid.Bool().Draw(t, "restart") {
				l.store = restored(t, snapshotOf(t, l.store))
			}
			got := map[string]row{}
			for _, s := range l.store.View().Scalers(nil) {
				got[s.Name] = row{s.State, s.CreateIndex, s.ModifyIndex}
			}
			require.True(t, maps.Equal(want, got), "want %v, got %v", want, got)
		}
	})
}

// drawScaler draws a change of one of few scalers, mostly a possible one.
func drawScaler(t *rapid.T, v *state.View) *state.SetScaler {
	c := &state.SetScaler{
		Name: pick([]string{"a", "b", "c/d"}).Draw(t, "scaler"), State: pick([]string{"1", "2", `{"<":null}`, "no"}).Draw(t, "memory"),
		Delete: between(0, 3).Draw(t, "forget") == 0,
	}
	switch between(0, 4).Draw(t, "compare") {
	case 0:
		c.ModifyIndex = ptr(rapid.Uint64Range(0, v.Index()).Draw(t, "known"))
	case 1, 2:
		c.ModifyIndex = ptr(uint64(0))
		if s := v.Scaler(nil, c.Name); s != nil {
			c.ModifyIndex = &s.ModifyIndex
		}
	}
	return c
}

// checkScaler looks at what an accepted change was to do.
func checkScaler(t require.TestingT, c *state.SetScaler, before, after *state.View) {
	s := after.Scaler(nil, c.Name)
	if c.Delete {
		require.Nil(t, s)
		require.Len(t, after.Scalers(nil), len(before.Scalers(nil))-1)
		return
	}
	require.Equal(t, c.State, s.State)
	if c.ModifyIndex != nil {
		require.Equal(t, after.Index(), s.ModifyIndex, "who compares gets an index that nobody had")
	}
}
