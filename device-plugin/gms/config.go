// Package gms is the GPU memory service: it owns GPU memory
// that outlives the engines, and hands out descriptors of it over Unix sockets, in the
// protocol of NVIDIA Dynamo's GPU Memory Service, so that its clients work unmodified.
//
// There is a unit, with one lock and one layout, for each GPU and tag. The units of a
// GPU's tags "weights" and "kv_cache" have sockets of their own, under the names that Dynamo's
// clients know.
// Any other comes into being on the node's socket, where a connection begins with an
// open_unit_request, and goes when nothing is committed and no connection is left.
//
// The rules of the lock and the layout are in package layout, a pure state
// machine. This package carries them out: sockets, memory (package backend)
// and what survives a crash (package keeper).
//
// One goroutine serves one connection, a request at a time, and writes its
// answers itself: a client that does not read holds up nobody else, and has at
// most one descriptor open here. Memory is released in the background, so that
// a driver that takes long to free holds up nobody either.
package gms

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"
	"unicode"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/backend"
	"remuda/device-plugin/gms/keeper"
	"remuda/internal/unixsock"
)

// GPU is one card with its memory. The servers of all its tags share it.
type GPU struct {
	// UUID is the card's, as in "GPU-5b7a…": it is part of the sockets' names.
	UUID string
	// Backend makes the memory. Its owner closes it after Run.
	Backend backend.Backend
}

// Config says what is served, and how long the server waits.
type Config struct {
	// SocketDir is where the sockets are made, and is made itself if need be.
	// Required.
	SocketDir string
	// GPUs are the cards. Required.
	GPUs []GPU
	// OOMRetry is how often an allocation that finds no room is tried again.
	OOMRetry time.Duration
	// OOMLimit is how long that goes on; 0 for as long as the client waits.
	OOMLimit time.Duration
	// FirstMessage is how long a connection may take for its first request.
	FirstMessage time.Duration
	// Frame is how long a frame may take once it has begun.
	Frame time.Duration
	// Write is how long a client may take to read an answer.
	Write time.Duration
	// ReleaseAfter is how long a layout on demand is kept once no client is connected to it.
	ReleaseAfter time.Duration
	// MaxConns bounds the connections that are served at once. Those that are too
	// many wait.
	MaxConns int
	// Keeper keeps committed layouts over a crash; nil for none. Kept is what it has
	// of the services before this one; Run takes the descriptors over. Starts is how
	// many services there were, this one included.
	Keeper Keeper
	Kept   []keeper.Record
	Starts uint64
	Logger hclog.Logger
	// Metrics takes the service's metrics; nil for none.
	Metrics prometheus.Registerer
	// OnReady, if not nil, is called once every socket is served.
	OnReady func()
}

// DefaultConfig has the reasons beside the numbers.
func DefaultConfig() Config {
	return Config{
		OOMRetry:     500 * time.Millisecond, // the protocol's
		FirstMessage: 10 * time.Second,       // clients send it at once
		Frame:        30 * time.Second,       // a MiB at most; a stopped client may be slow
		Write:        30 * time.Second,       // only a client that is stuck fills its socket's buffer
		ReleaseAfter: 10 * time.Second,       // an engine that crashed is back within seconds
		MaxConns:     maxConns(),
		Logger:       hclog.NewNullLogger(),
	}
}

// maxConns leaves three quarters of the descriptors to allocations, exports and
// the rest of the process.
func maxConns() int {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		files.Cur = 1024 // what Linux gives by default
	}
	return int(min(max(files.Cur/4, 16), 4096))
}

func (c Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.SocketDir == "" {
		bad("socket dir is empty: must be the directory of the sockets")
	}
	if len(c.GPUs) == 0 {
		bad("GPUs are missing: must be at least one")
	}
	names := map[string]bool{}
	for _, g := range c.GPUs {
		if !nameable(g.UUID) || names[g.UUID] {
			bad("GPU %q: must be a unique name of letters, digits, '-', '_', '.' and ':'", g.UUID)
		}
		if g.Backend == nil {
			bad("GPU %q: backend must be set", g.UUID)
		}
		names[g.UUID] = true
	}
	for _, g := range c.GPUs {
		path := tagSocketPath(c.SocketDir, g.UUID, kvCacheTag) // the longest
		if len(path) > unixsock.MaxPath {
			bad("socket %s: the path is %d bytes long: must be at most %d, so choose a shorter socket directory", path, len(path), unixsock.MaxPath)
		}
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{
		{"oom retry", c.OOMRetry}, {"first message", c.FirstMessage}, {"frame", c.Frame}, {"write", c.Write}, {"release after", c.ReleaseAfter},
	} {
		if d.value <= 0 {
			bad("%s is %s: must be more than 0", d.name, d.value)
		}
	}
	if c.OOMLimit < 0 {
		bad("oom limit is %s: must be 0 (none) or more", c.OOMLimit)
	}
	if c.MaxConns < 2 {
		bad("max connections is %d: must be at least 2", c.MaxConns)
	}
	if c.Logger == nil {
		bad("logger must be set")
	}
	return errors.Join(errs...)
}

// nameable tells whether a name may be part of a file's name and of a label.
func nameable(s string) bool {
	for _, r := range s {
		word := r <= unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r))
		if !word && !strings.ContainsRune("-_.:", r) {
			return false
		}
	}
	return s != ""
}

// SocketPath is the socket of a GPU's unit with the tag WeightsTag.
func SocketPath(dir, uuid string) string { return tagSocketPath(dir, uuid, WeightsTag) }

// tagSocketPath is the socket of a GPU's unit whose tag has one of its own.
func tagSocketPath(dir, uuid, tag string) string {
	return filepath.Join(dir, "gms_"+uuid+"_"+tag+".sock")
}

// NodeSocketPath is the socket on which a client asks for the unit of any GPU and tag.
func NodeSocketPath(dir string) string { return filepath.Join(dir, "gms.sock") }

// newNonce names a server's incarnation.
func newNonce() string {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // it never fails
	return hex.EncodeToString(raw[:])
}
