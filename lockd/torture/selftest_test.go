package torture

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHistories(t *testing.T) {
	op := func(k kind, life, token uint64, call, ret int64) operation {
		return operation{Kind: k, Life: life, Token: token, Call: call, Return: ret}
	}
	for name, tc := range map[string]struct {
		ops []operation
		bad bool
	}{
		"nothing": {},
		"one after the other": {ops: []operation{
			op(acquire, 1, 1, 0, 10), op(hold, 1, 1, 15, 15), op(die, 1, 1, 20, 40),
			op(acquire, 2, 3, 5, 30), op(hold, 2, 3, 35, 35), op(die, 2, 3, 50, 60)}},
		"kept": {ops: []operation{op(acquire, 1, 1, 0, 10), op(keep, 1, 1, 11, 12), op(die, 1, 1, 20, 40)}},
		"granted while another lives": {bad: true, ops: []operation{
			op(acquire, 1, 1, 0, 10), op(die, 1, 1, 50, 60), op(acquire, 2, 2, 5, 30), op(die, 2, 2, 70, 80)}},
		"the same token": {bad: true, ops: []operation{
			op(acquire, 1, 1, 0, 10), op(die, 1, 1, 12, 14), op(acquire, 2, 1, 5, 30), op(die, 2, 1, 70, 80)}},
		"a smaller token": {bad: true, ops: []operation{
			op(acquire, 1, 2, 0, 10), op(die, 1, 2, 12, 14), op(acquire, 2, 1, 20, 30), op(die, 2, 1, 70, 80)}},
		"kept by another": {bad: true, ops: []operation{
			op(acquire, 1, 1, 0, 10), op(keep, 2, 1, 11, 12), op(die, 1, 1, 20, 40)}},
		"held after its end": {bad: true, ops: []operation{
			op(acquire, 1, 1, 0, 10), op(die, 1, 1, 12, 14), op(hold, 1, 1, 20, 20)}},
	} {
		t.Run(name, func(t *testing.T) {
			err := linearizable(tc.ops)
			require.Equal(t, tc.bad, err != nil, "%v", err)
		})
	}
}

func TestPageFindsOverlaps(t *testing.T) {
	dir := t.TempDir()
	open := func() *page {
		p, err := openPage(pagePath(dir), 2)
		require.NoError(t, err)
		t.Cleanup(func() { _ = p.close() })
		return p
	}
	first, err := open().enter(1, 1, 1, now(), true)
	require.NoError(t, err)
	child, err := open().enter(1, 1, 1, now(), false)
	require.NoError(t, err)
	require.NoError(t, first.beat())
	_, err = open().enter(0, 9, 1, now(), true)
	require.NoError(t, err, "another group")

	second, err := open().enter(1, 2, 2, now(), true)
	require.NoError(t, err, "the first has been silent since")
	require.NoError(t, second.beat())
	require.ErrorContains(t, child.beat(), "lives and holds")
	require.ErrorContains(t, second.beat(), "lived and held")
	require.NoError(t, second.beat(), "it is said once")

	_, err = open().enter(1, 3, 2, now(), true)
	require.ErrorContains(t, err, "was granted before")
}

func TestWitnessIsHeldByChildren(t *testing.T) {
	dir := t.TempDir()
	w, err := takeWitness(dir, 0)
	require.NoError(t, err)
	child := exec.Command("cat")
	child.Env = append(os.Environ(), lifeVar+"=7")
	child.ExtraFiles = []*os.File{w.file}
	in, err := child.StdinPipe()
	require.NoError(t, err)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	require.NoError(t, w.file.Close())
	// In the middle of its exec a process has no environment yet.
	_, err = in.Write([]byte("up"))
	require.NoError(t, err)
	_, err = io.ReadFull(out, make([]byte, 2))
	require.NoError(t, err)
	other, err := takeWitness(dir, 1)
	require.NoError(t, err, "another group")
	require.NoError(t, other.file.Close())

	began := time.Now()
	again, err := takeWitness(dir, 0)
	require.ErrorContains(t, err, "(life 7)")
	require.Less(t, time.Since(began), 10*time.Second)
	require.NoError(t, again.file.Close())
	require.NoError(t, child.Process.Kill())
	_ = child.Wait()
	free, err := takeWitness(dir, 0)
	require.NoError(t, err)
	require.NoError(t, free.file.Close())
	require.Equal(t, filepath.Join(dir, "flock-0"), free.file.Name())
}
