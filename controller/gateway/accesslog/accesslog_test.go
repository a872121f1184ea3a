package accesslog_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"remuda/controller/gateway/accesslog"
	"remuda/internal/testkit/proclog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// parse returns the IDs of the lines, each of which must be whole and JSON.
func parse(t *testing.T, text string) (ids []string) {
	t.Helper()
	for l := range strings.Lines(text) {
		require.True(t, strings.HasSuffix(l, "\n"), "a whole line: %q", l)
		var v struct {
			Time time.Time
			ID   string
		}
		require.NoError(t, json.Unmarshal([]byte(l), &v), "%q", l)
		require.False(t, v.Time.IsZero())
		ids = append(ids, v.ID)
	}
	return ids
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(b)
}

func numbered(n int) accesslog.Record {
	return accesslog.Record{Time: time.Unix(1, 0), ID: fmt.Sprint(n), UserAgent: strings.Repeat("u", 100)}
}

func TestOff(t *testing.T) {
	l, err := accesslog.New(accesslog.Config{})
	require.NoError(t, err)
	require.Nil(t, l)
	r := record()
	require.Zero(t, testing.AllocsPerRun(100, func() { l.Log(r) }))
	require.Zero(t, l.Dropped())
	require.NoError(t, l.Reopen())
	require.NoError(t, l.Close(t.Context()))
}

func TestPathThatCannotBeOpened(t *testing.T) {
	path := filepath.Join(t.TempDir(), "missing", "access.log")
	_, err := accesslog.New(accesslog.Config{Path: path})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, path)
}

// Lines of many goroutines are whole, each goroutine's are in order, and Close
// leaves none behind.
func TestConcurrent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	l, err := accesslog.New(accesslog.Config{Path: path})
	require.NoError(t, err)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 1000 {
				l.Log(accesslog.Record{Time: time.Unix(1, 0), ID: fmt.Sprintf("%d-%04d", g, i)})
			}
		})
	}
	wg.Wait()
	require.NoError(t, l.Close(t.Context()))
	require.NoError(t, l.Close(t.Context()))
	require.Zero(t, l.Dropped())
	last := map[string]string{}
	lines := parse(t, read(t, path))
	require.Len(t, lines, 8000)
	for _, id := range lines {
		g, _, _ := strings.Cut(id, "-")
		require.Greater(t, id, last[g])
		last[g] = id
	}
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Zero(t, info.Mode().Perm()&^0o640, "addresses of clients are not for everybody")
}

// A line is in the file soon, without Close.
func TestFlushes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	l, err := accesslog.New(accesslog.Config{Path: path})
	require.NoError(t, err)
	l.Log(numbered(7))
	require.Eventually(t, func() bool { return len(parse(t, read(t, path))) == 1 }, time.Minute, 5*time.Millisecond)
	require.NoError(t, l.Close(t.Context()))
}

// 64 KiB of lines are written at once, without waiting for the second to end, which most of the
// rounds would otherwise take.
func TestFlushesWhenMuchIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	l, err := accesslog.New(accesslog.Config{Path: path})
	require.NoError(t, err)
	size := len(lineOf(t, numbered(100))) + 1
	logged, atOnce := 0, 0
	for range 20 {
		began := time.Now()
		for range 200 {
			l.Log(numbered(100))
		}
		logged += 200 * size
		require.Eventually(t, func() bool {
			info, err := os.Stat(path)
			return err == nil && info.Size() > int64(logged-64<<10)
		}, time.Minute, time.Millisecond)
		if time.Since(began) < 500*time.Millisecond {
			atOnce++
		}
	}
	require.Greater(t, atOnce, 5)
	require.NoError(t, l.Close(t.Context()))
	require.Len(t, parse(t, read(t, path)), 4000)
}

// isOpen reports whether this process has the file open.
func isOpen(t *testing.T, path string) bool {
	t.Helper()
	fds, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	return slices.ContainsFunc(fds, func(fd string) bool {
		file, err := os.Readlink(fd)
		return err == nil && file == path
	})
}

func TestReopen(t *testing.T) {
	dir := t.TempDir()
	path, rotated := filepath.Join(dir, "access.log"), filepath.Join(dir, "access.log.1")
	l, err := accesslog.New(accesslog.Config{Path: path})
	require.NoError(t, err)
	l.Log(numbered(1))
	require.Eventually(t, func() bool { return strings.Contains(read(t, path), `"id":"1"`) }, time.Minute, time.Millisecond)
	require.NoError(t, os.Rename(path, rotated))
	l.Log(numbered(2))
	require.Eventually(t, func() bool { return strings.Contains(read(t, rotated), `"id":"2"`) }, time.Minute, time.Millisecond)
	require.NoError(t, l.Reopen())
	require.NoError(t, l.Reopen(), "twice is no harm")
	l.Log(numbered(3))
	require.Eventually(t, func() bool { return strings.Contains(read(t, path), `"id":"3"`) }, time.Minute, time.Millisecond)
	require.Len(t, parse(t, read(t, rotated)), 2)
	require.False(t, isOpen(t, rotated))

	// Where the new one cannot be opened, the old one goes on.
	require.NoError(t, os.Rename(dir, dir+"-moved"))
	require.ErrorIs(t, l.Reopen(), os.ErrNotExist)
	l.Log(numbered(4))
	require.NoError(t, l.Close(t.Context()))
	require.Len(t, parse(t, read(t, filepath.Join(dir+"-moved", "access.log"))), 2)
	require.NoError(t, os.Rename(dir+"-moved", dir))
	require.ErrorContains(t, l.Reopen(), "is closed")
	l.Log(numbered(5))
	require.EqualValues(t, 1, l.Dropped())
}

// pipe makes a named pipe and opens it for reading.
func pipe(t *testing.T) (string, *os.File) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	_, err := accesslog.New(accesslog.Config{Path: path})
	require.ErrorIs(t, err, syscall.ENXIO, "nobody reads: refused, not waited for")
	r, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	require.NoError(t, err)
	t.Cleanup(func() { r.Close() })
	return path, r
}

// hang logs until the buffer is full, because nothing reads the pipe, and returns the
// number of lines.
func hang(t *testing.T, l *accesslog.Logger) (n int) {
	t.Helper()
	for ; l.Dropped() == 0; n++ {
		require.Less(t, n, 200_000)
		l.Log(numbered(n))
	}
	return n
}

// A file that hangs costs lines, never time, and each line is written or counted.
func TestHungFile(t *testing.T) {
	path, r := pipe(t)
	var said proclog.Buffer
	l, err := accesslog.New(accesslog.Config{Path: path, Logger: said.Logger()})
	require.NoError(t, err)
	n := hang(t, l)
	for range 1000 {
		l.Log(numbered(n))
		n++
	}
	var got bytes.Buffer
	var reading sync.WaitGroup
	reading.Go(func() { _, _ = got.ReadFrom(r) })
	require.NoError(t, l.Close(t.Context()))
	reading.Wait()
	last := -1
	ids := parse(t, got.String())
	for _, id := range ids {
		at, err := strconv.Atoi(id)
		require.NoError(t, err)
		require.Greater(t, at, last)
		last = at
	}
	require.EqualValues(t, n, uint64(len(ids))+l.Dropped())
	require.Greater(t, len(ids), 10_000, "what fits is kept")
	require.Regexp(t, fmt.Sprintf(`^[^\n]*cannot write all lines[^\n]* dropped=%d [^\n]*\n[^\n]*writing all lines[^\n]*\n$`, l.Dropped()), said.String())
}

// Close does not wait for ever for a file that hangs.
func TestCloseOfAHungFile(t *testing.T) {
	path, r := pipe(t)
	l, err := accesslog.New(accesslog.Config{Path: path})
	require.NoError(t, err)
	n := hang(t, l)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err = l.Close(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, path)

	require.NoError(t, r.Close()) // the write ends with EPIPE
	require.NoError(t, l.Close(t.Context()))
	require.Greater(t, l.Dropped(), uint64(n/2))
	require.Less(t, l.Dropped(), uint64(n))
}

// A write that fails half way leaves one broken line; the next line begins on its own.
func TestTornLine(t *testing.T) {
	path, r := pipe(t)
	l, err := accesslog.New(accesslog.Config{Path: path})
	require.NoError(t, err)
	const n = 1000 // more than a pipe holds, less than the buffer
	for i := range n {
		l.Log(numbered(i))
	}
	raw, err := r.SyscallConn()
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		held := 0
		err := raw.Control(func(fd uintptr) { held, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
		return err == nil && held == 64<<10
	}, time.Minute, time.Millisecond)
	require.NoError(t, r.Close()) // the write ends with EPIPE
	require.Eventually(t, func() bool { return l.Dropped() > 0 }, time.Minute, time.Millisecond)

	again, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	require.NoError(t, err)
	defer again.Close()
	var got bytes.Buffer
	var reading sync.WaitGroup
	reading.Go(func() { _, _ = got.ReadFrom(again) })
	l.Log(numbered(n))
	require.NoError(t, l.Close(t.Context()))
	reading.Wait()
	whole, broken := uint64(0), 0
	for line := range strings.Lines(got.String()) {
		if json.Valid([]byte(line)) {
			whole++
		} else {
			broken++
		}
	}
	require.Equal(t, 1, broken)
	require.EqualValues(t, n+1, whole+l.Dropped())
	require.True(t, strings.HasSuffix(got.String(), lineOf(t, numbered(n))+"\n"))
}

// A disk that is full and then is not.
func TestFailingWrites(t *testing.T) {
	path, r := pipe(t)
	var said proclog.Buffer
	l, err := accesslog.New(accesslog.Config{Path: path, Logger: said.Logger()})
	require.NoError(t, err)
	require.NoError(t, r.Close()) // EPIPE from here on
	for n := range 3 {
		l.Log(numbered(n))
		require.Eventually(t, func() bool { return l.Dropped() == uint64(n+1) }, time.Minute, time.Millisecond)
	}
	again, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	require.NoError(t, err)
	defer again.Close()
	l.Log(numbered(3))
	require.NoError(t, l.Close(t.Context()))
	rest, err := io.ReadAll(again)
	require.NoError(t, err)
	require.Equal(t, []string{"3"}, parse(t, string(rest)))
	require.EqualValues(t, 3, l.Dropped())
	require.Equal(t, 1, strings.Count(said.String(), "cannot write all lines"), "said once: %s", said.String())
	require.Equal(t, 1, strings.Count(said.String(), "writing all lines of the access log again"))
	require.Contains(t, said.String(), "dropped_total=3")
}

func TestStdout(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	old := os.Stdout
	os.Stdout = w
	l, err := accesslog.New(accesslog.Config{Path: accesslog.Stdout})
	os.Stdout = old
	require.NoError(t, err)
	require.NoError(t, l.Reopen())
	l.Log(numbered(1))
	require.NoError(t, l.Close(t.Context()))
	_, err = w.WriteString("still open\n")
	require.NoError(t, err)
	w.Close()
	all, err := io.ReadAll(r)
	require.NoError(t, err)
	rest, ok := strings.CutSuffix(string(all), "still open\n")
	require.True(t, ok)
	require.Len(t, parse(t, rest), 1)
}

func BenchmarkLog(b *testing.B) {
	r := record()
	for _, path := range []string{"", filepath.Join(b.TempDir(), "access.log"), os.DevNull} {
		b.Run(filepath.Base(path), func(b *testing.B) {
			l, err := accesslog.New(accesslog.Config{Path: path})
			require.NoError(b, err)
			for b.Loop() {
				l.Log(r)
			}
			require.NoError(b, l.Close(context.Background()))
			b.ReportMetric(float64(l.Dropped())/float64(b.N), "dropped/op")
		})
	}
	b.Run("line", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := r.MarshalJSON(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
