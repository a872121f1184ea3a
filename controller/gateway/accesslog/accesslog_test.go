package accesslog_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"remuda/controller/gateway/accesslog"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// line is what the tests look at in a line.
type line struct {
	Time    time.Time
	ID      string
	Dropped uint64
}

func parse(t *testing.T, text string) (out []line) {
	t.Helper()
	for l := range strings.Lines(text) {
		require.True(t, strings.HasSuffix(l, "\n"), "a whole line: %q", l)
		var v line
		require.NoError(t, json.Unmarshal([]byte(l), &v), "%q", l)
		require.False(t, v.Time.IsZero())
		out = append(out, v)
	}
	return out
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

// output is a program's log.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func (o *output) logger() hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Output: o})
}

func TestOff(t *testing.T) {
	l, err := accesslog.New(accesslog.Config{})
	require.NoError(t, err)
	require.Nil(t, l)
	l.Log(record())
	require.Zero(t, l.Dropped())
	require.NoError(t, l.Reopen())
	require.NoError(t, l.Close(t.Context()))
}

func TestBadConfig(t *testing.T) {
	_, err := accesslog.New(accesslog.Config{Path: "x", Buffer: 100, Flush: -time.Second})
	require.EqualError(t, err, "access log: buffer is 100 bytes: must be at least 65536, or 0 for the default of 4194304\n"+
		"access log: flush is -1s: must be more than 0, or 0 for the default of 1s")
	path := filepath.Join(t.TempDir(), "missing", "access.log")
	_, err = accesslog.New(accesslog.Config{Path: path})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, path)
}

// Lines of many goroutines are whole, each goroutine's are in order, and Close
// leaves none behind.
func TestConcurrent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	l, err := accesslog.New(accesslog.Config{Path: path, Flush: time.Millisecond})
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
	for _, v := range lines {
		g, _, _ := strings.Cut(v.ID, "-")
		require.Greater(t, v.ID, last[g])
		last[g] = v.ID
	}
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Zero(t, info.Mode().Perm()&^0o640, "addresses of clients are not for everybody")
}

// A line is there within the flush time, without Close.
func TestFlushes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	l, err := accesslog.New(accesslog.Config{Path: path, Flush: 20 * time.Millisecond})
	require.NoError(t, err)
	l.Log(numbered(7))
	require.Eventually(t, func() bool { return len(parse(t, read(t, path))) == 1 }, time.Minute, 5*time.Millisecond)
	require.NoError(t, l.Close(t.Context()))
}

// 64 KiB of lines are written at once, however long the flush time.
func TestFlushesWhenMuchIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	l, err := accesslog.New(accesslog.Config{Path: path, Flush: time.Hour})
	require.NoError(t, err)
	for i := range 400 {
		l.Log(numbered(i))
	}
	require.Eventually(t, func() bool { return len(read(t, path)) >= 64<<10 }, time.Minute, 5*time.Millisecond)
	require.NoError(t, l.Close(t.Context()))
	require.Len(t, parse(t, read(t, path)), 400)
}

func TestReopen(t *testing.T) {
	dir := t.TempDir()
	path, rotated := filepath.Join(dir, "access.log"), filepath.Join(dir, "access.log.1")
	l, err := accesslog.New(accesslog.Config{Path: path, Flush: time.Millisecond})
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

// What a process left that died in a write does not spoil the next line.
func TestTornEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	require.NoError(t, os.WriteFile(path, []byte("{\"a\":1}\n{\"tor"), 0o600))
	l, err := accesslog.New(accesslog.Config{Path: path})
	require.NoError(t, err)
	l.Log(numbered(1))
	require.NoError(t, l.Close(t.Context()))
	rest, ok := strings.CutPrefix(read(t, path), "{\"a\":1}\n{\"tor\n")
	require.True(t, ok)
	require.Len(t, parse(t, rest), 1)
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

// A reader that stops costs lines, not time; the log says how many, where they are
// missing.
func TestSlowReader(t *testing.T) {
	path, r := pipe(t)
	var said output
	l, err := accesslog.New(accesslog.Config{Path: path, Buffer: 64 << 10, Flush: time.Millisecond, Logger: said.logger()})
	require.NoError(t, err)
	n := 0
	for ; l.Dropped() == 0; n++ {
		require.Less(t, n, 100000)
		l.Log(numbered(n))
	}
	for range 1000 {
		l.Log(numbered(n))
		n++
	}
	// The reader comes back, and can tell of each line where it is or that it is not.
	lines := bufio.NewScanner(r)
	next := func() line {
		require.NoError(t, r.SetReadDeadline(time.Now().Add(time.Minute)))
		require.True(t, lines.Scan(), "%v", lines.Err())
		return parse(t, lines.Text()+"\n")[0]
	}
	dropped := uint64(0)
	for at := uint64(0); at < uint64(n); {
		v := next()
		if v.ID != "" {
			require.Equal(t, fmt.Sprint(at), v.ID)
			at++
		}
		at += v.Dropped
		dropped += v.Dropped
	}
	require.Equal(t, l.Dropped(), dropped)
	l.Log(numbered(n))
	require.Equal(t, fmt.Sprint(n), next().ID, "and it goes on")
	require.NoError(t, l.Close(t.Context()))
	require.Contains(t, said.String(), "lines were dropped")
}

// Close does not wait for ever for a reader that has stopped.
func TestCloseOfAHangingPipe(t *testing.T) {
	path, _ := pipe(t)
	l, err := accesslog.New(accesslog.Config{Path: path, Flush: time.Millisecond})
	require.NoError(t, err)
	const lines = 2000 // more than a pipe holds
	for i := range lines {
		l.Log(numbered(i))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err = l.Close(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, path)
	require.Positive(t, l.Dropped())
	require.Less(t, l.Dropped(), uint64(lines))
}

// A disk that is full and then is not.
func TestFailingWrites(t *testing.T) {
	path, r := pipe(t)
	var said output
	l, err := accesslog.New(accesslog.Config{Path: path, Flush: time.Millisecond, Logger: said.logger()})
	require.NoError(t, err)
	require.NoError(t, r.Close()) // EPIPE from here on
	l.Log(numbered(0))
	require.Eventually(t, func() bool { return l.Dropped() == 1 }, time.Minute, time.Millisecond)
	l.Log(numbered(1))
	require.Eventually(t, func() bool { return l.Dropped() == 2 }, time.Minute, time.Millisecond)
	again, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	require.NoError(t, err)
	defer again.Close()
	require.NoError(t, again.SetReadDeadline(time.Now().Add(time.Minute)))
	lines := bufio.NewScanner(again)
	require.True(t, lines.Scan(), "%v", lines.Err())
	require.EqualValues(t, 2, parse(t, lines.Text()+"\n")[0].Dropped)
	l.Log(numbered(2))
	require.True(t, lines.Scan())
	require.Equal(t, "2", parse(t, lines.Text()+"\n")[0].ID)
	require.NoError(t, l.Close(t.Context()))
	require.Equal(t, 1, strings.Count(said.String(), "cannot write the access log"), "said once: %s", said.String())
	require.Equal(t, 1, strings.Count(said.String(), "writing the access log again"))
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

func TestLogAllocatesNothing(t *testing.T) {
	var off *accesslog.Logger
	l, err := accesslog.New(accesslog.Config{Path: os.DevNull, Flush: time.Hour})
	require.NoError(t, err)
	r := record()
	for range 200 {
		require.Zero(t, testing.AllocsPerRun(1, func() { off.Log(r) }))
	}
	require.Zero(t, testing.AllocsPerRun(50, func() { l.Log(r) }))
	require.NoError(t, l.Close(t.Context()))
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
		var line []byte
		for b.Loop() {
			line = r.Append(line[:0])
		}
		b.SetBytes(int64(len(line)))
	})
}
