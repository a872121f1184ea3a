package keeper

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"remuda/internal/unixsock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must come.
const patience = time.Minute

// connect starts a service in this process: s is what it has, and end its death.
func connect(t *testing.T, s *store) (service *Service, records []Record, end func()) {
	t.Helper()
	l, other, err := pair()
	require.NoError(t, err)
	fd, err := unix.FcntlInt(other.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, other.Close())
	served := make(chan error, 1)
	go func() {
		err := s.give(l, 7)
		if err == nil {
			err = s.serve(l, func(op) {})
		}
		l.close()
		served <- err
	}()
	service, records, err = Connect(fd)
	require.NoError(t, err)
	require.EqualValues(t, 7, service.Starts())
	ended := false
	end = func() {
		if !ended {
			ended = true
			service.Close()
			require.ErrorIs(t, <-served, errEnded)
		}
	}
	t.Cleanup(end)
	return service, records, end
}

// file makes a descriptor of a file that holds its number.
func file(number int) (int, error) {
	fd, err := unix.MemfdCreate("kept", unix.MFD_CLOEXEC)
	if err == nil {
		_, err = unix.Pwrite(fd, binary.BigEndian.AppendUint32(nil, uint32(number)), 0)
	}
	return fd, err
}

// requireFiles checks what file has made, and closes it.
func requireFiles(t *testing.T, fds []int, n int) {
	t.Helper()
	require.Len(t, fds, n)
	for i, fd := range fds {
		buf := make([]byte, 4)
		_, err := unix.Pread(fd, buf, 0)
		require.NoError(t, err)
		require.EqualValues(t, i, binary.BigEndian.Uint32(buf), "the order is kept")
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		require.NoError(t, err)
		require.NotZero(t, flags&unix.FD_CLOEXEC)
	}
	unixsock.CloseAll(fds)
}

// open counts this process's descriptors of records.
func open(t *testing.T) (n int) {
	t.Helper()
	list, err := filepath.Glob("/proc/self/fd/*")
	require.NoError(t, err)
	for _, fd := range list {
		if to, err := os.Readlink(fd); err == nil && (to == "/memfd:kept (deleted)" || to == "/memfd:remuda-gms-layout (deleted)") {
			n++
		}
	}
	return n
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// TestRecordsOutliveServices: of any size, and nothing is left open.
func TestRecordsOutliveServices(t *testing.T) {
	for _, tc := range []struct {
		name       string
		bytes, fds int
	}{
		{"empty", 0, 0}, {"blob only", 7, 0}, {"descriptors", 1, 3}, {"one full packet", 9, maxBatch - 1}, {"one more", 9, maxBatch}, {"large", 5 << 20, 2000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			store := newStore()
			service, records, end := connect(t, store)
			require.Empty(t, records)
			blob := bytes.Repeat([]byte("x"), tc.bytes)
			most := 0
			require.NoError(t, service.Save(within(t), "r", blob, tc.fds, func(i int) (int, error) {
				if i%100 == 0 {
					most = max(most, open(t)-i) // the keeper has those before
				}
				return file(i)
			}))
			require.Less(t, most, 3*maxBatch, "few are open at a time")
			require.Equal(t, tc.fds+1, open(t))
			require.NoError(t, service.Save(within(t), "other", []byte("o"), 0, nil))
			for range 2 {
				end()
				service, records, end = connect(t, store)
				require.Len(t, records, 2)
				require.Equal(t, "other", records[0].Name)
				require.Equal(t, "r", records[1].Name)
				require.True(t, bytes.Equal(blob, records[1].Blob))
				requireFiles(t, records[1].FDs, tc.fds)
			}
			require.NoError(t, service.Drop(within(t), "r"))
			require.NoError(t, service.Drop(within(t), "r"), "an unknown name is no error")
			end()
			_, records, end = connect(t, store)
			require.Len(t, records, 1)
			end()
			store.close()
			require.Zero(t, open(t))
		})
	}
}

// TestSaveReplacesARecordAsAWhole: at each step at which the service can die, or fail,
// the old record is there.
func TestSaveReplacesARecordAsAWhole(t *testing.T) {
	store := newStore()
	t.Cleanup(store.close)
	const old, fresh = 3, 2*maxBatch + 5
	service, _, end := connect(t, store)
	require.NoError(t, service.Save(within(t), "r", []byte("old"), old, file))
	broken := errors.New("broken")
	for _, at := range []int{0, maxBatch - 1, maxBatch, fresh - 1} {
		err := service.Save(within(t), "r", []byte("new"), fresh, func(i int) (int, error) {
			if i == at {
				return -1, broken
			}
			return file(i)
		})
		require.ErrorIs(t, err, broken)
	}
	require.NoError(t, service.Save(within(t), "other", nil, 1, file), "it goes on")
	require.NoError(t, service.Drop(within(t), "other"))
	// A death is a packet that does not come.
	for packets := range 4 {
		require.NoError(t, service.ask(opBegin, beginBody("r", 2)))
		for range packets {
			fd, err := file(9)
			require.NoError(t, err)
			_ = service.ask(opFDs, nil, fd) // a third one is too many
			require.NoError(t, unix.Close(fd))
		}
		end()
		require.Equal(t, old+1, open(t))
		var records []Record
		service, records, end = connect(t, store)
		require.Equal(t, "old", string(records[0].Blob))
		requireFiles(t, records[0].FDs, old)
	}
	require.NoError(t, service.Save(within(t), "r", []byte("new"), fresh, file))
	end()
	_, records, _ := connect(t, store)
	require.Equal(t, "new", string(records[0].Blob))
	requireFiles(t, records[0].FDs, fresh)
}

// TestLimit: a record that does not fit is refused with what to do, and what is kept
// stays.
func TestLimit(t *testing.T) {
	store := newStore()
	t.Cleanup(store.close)
	store.limit = 10
	service, _, end := connect(t, store)
	require.NoError(t, service.Save(within(t), "a", nil, 5, file))
	var refused *RefusedError
	err := service.Save(within(t), "b", nil, 4, file)
	require.ErrorAs(t, err, &refused)
	require.ErrorContains(t, err, "it has 5 descriptors, 6 are kept already, and 10 fit: raise the limit of open files")
	require.NoError(t, service.Save(within(t), "b", nil, 3, file))
	require.ErrorAs(t, service.Save(within(t), "a", nil, 1, file), &refused, "the old record stays until the new one is whole")
	require.NoError(t, service.Drop(within(t), "b"))
	require.NoError(t, service.Save(within(t), "a", nil, 3, file))
	require.Error(t, service.Save(within(t), string(make([]byte, maxName+1)), nil, 0, file))
	end()
	require.Equal(t, 4, store.held())
}

// TestBrokenProtocolEndsTheService: and leaks nothing.
func TestBrokenProtocolEndsTheService(t *testing.T) {
	for name, packets := range map[string]func(l *link) error{
		"unknown":    func(l *link) error { return l.send('?', nil) },
		"no name":    func(l *link) error { return l.send(opBegin, []byte{0, 0, 0, 1}) },
		"short":      func(l *link) error { return l.send(opBegin, nil) },
		"an answer":  func(l *link) error { return l.send(opOK, nil) },
		"descriptor": func(l *link) error { fd, _ := file(1); defer unix.Close(fd); return l.send('?', nil, fd) }, //nolint:errcheck // a descriptor of the test
	} {
		t.Run(name, func(t *testing.T) {
			store := newStore()
			l, other, err := pair()
			require.NoError(t, err)
			defer l.close()
			fd, err := unix.FcntlInt(other.Fd(), unix.F_DUPFD_CLOEXEC, 0)
			require.NoError(t, err)
			require.NoError(t, other.Close())
			peer, err := newLink(fd)
			require.NoError(t, err)
			defer peer.close()
			require.NoError(t, packets(peer))
			require.ErrorIs(t, store.serve(l, func(op) {}), errProtocol)
			require.Zero(t, open(t))
		})
	}
}

// TestCallsEndWithTheirContextOrTheKeeper: one that waits for another call.
func TestCallsEndWithTheirContextOrTheKeeper(t *testing.T) {
	store := newStore()
	t.Cleanup(store.close)
	service, _, end := connect(t, store)
	in, letGo := make(chan struct{}), make(chan struct{})
	saved := make(chan error, 1)
	go func() {
		saved <- service.Save(context.Background(), "r", nil, 1, func(i int) (int, error) { close(in); <-letGo; return file(i) })
	}()
	<-in
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, service.Drop(ctx, "r"), context.Canceled)
	close(letGo)
	require.NoError(t, <-saved)
	end()
	select {
	case <-service.Done():
	case <-time.After(patience):
		t.Fatal("the end of the keeper is not seen")
	}
	require.Error(t, service.Save(within(t), "r", nil, 0, nil))
}

func TestConfigNamesEveryBadField(t *testing.T) {
	_, err := New(Config{})
	for _, field := range []string{"ServiceArgs", "Program", "Ping", "Hang", "Start", "Stop", "Retry", "RetryMax", "Logger"} {
		require.ErrorContains(t, err, field)
	}
	_, _, err = Connect(1 << 20)
	require.Error(t, err)
}

// TestHandover: the list of records that an older or a newer keeper cannot read is an
// error, and not an empty keeper.
func TestHandover(t *testing.T) {
	k, err := New(Config{ServiceArgs: []string{"x"}, Program: "x", Ping: 1, Hang: 1, Start: 1, Stop: 1, Retry: 1, RetryMax: 1, Logger: DefaultConfig().Logger})
	require.NoError(t, err)
	for _, tc := range []struct{ list, want string }{
		{`{"version":2}`, "it has version 2: must be 1"}, {`{`, "read the records"},
		{`{"version":1,"starts":3,"records":{"a":[]}}`, ""},
	} {
		fd, err := writeBlob([]byte(tc.list))
		require.NoError(t, err)
		t.Setenv(HandoverEnv, fmt.Sprint(fd))
		err = k.takeOver()
		if tc.want != "" {
			require.ErrorContains(t, err, tc.want)
			continue
		}
		require.NoError(t, err)
		require.Empty(t, os.Getenv(HandoverEnv), "no service sees it")
		require.EqualValues(t, 3, k.starts)
	}
	t.Setenv(HandoverEnv, "x")
	require.ErrorContains(t, k.takeOver(), "must be the number of a descriptor")
	// A program that cannot be executed leaves the records as they were.
	fd, err := file(0)
	require.NoError(t, err)
	k.store.records = map[string][]int{"a": {fd}}
	require.ErrorContains(t, k.exec("/does/not/exist"), "execute /does/not/exist")
	requireFiles(t, k.store.records["a"], 1)
}

// FuzzServe: whatever packets come, the keeper ends the service or goes on, and no
// descriptor is left open.
func FuzzServe(f *testing.F) {
	f.Add([]byte{2, 'b', 1, 0, 1, 'f', 1, 1, 'e', 0})
	f.Add([]byte{6, 'b', 0, 0, 0, 1, 'r', 0, 1, 'f', 2, 1, 'e', 0, 2, 'd', 'r', 0})
	f.Fuzz(func(t *testing.T, packets []byte) {
		store := newStore()
		l, other, err := pair()
		require.NoError(t, err)
		peer, err := unix.FcntlInt(other.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		require.NoError(t, err)
		require.NoError(t, other.Close())
		p, err := newLink(peer)
		require.NoError(t, err)
		for len(packets) > 0 { // a length, so many bytes, and how many descriptors come along
			n := min(int(packets[0]), len(packets)-1)
			body := packets[1 : 1+n]
			packets = packets[1+n:]
			fds := []int{}
			if len(packets) > 0 {
				for range packets[0] % 3 {
					fd, err := file(0)
					require.NoError(t, err)
					fds = append(fds, fd)
				}
				packets = packets[1:]
			}
			if n > 0 {
				require.NoError(t, p.c.SetWriteDeadline(time.Now().Add(10*time.Millisecond))) // nobody reads yet
				_ = p.send(op(body[0]), body[1:], fds...)
			}
			unixsock.CloseAll(fds)
		}
		p.close()
		require.Error(t, store.serve(l, func(op) {}))
		l.close()
		store.close()
		require.Zero(t, open(t))
	})
}
