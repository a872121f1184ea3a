package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/offload"
	"remuda/internal/private"
)

// Tier is what is wanted of a replica.
type Tier string

// The tiers that a shim knows. A replica that is cold has no shim.
const (
	// Hot: the engine that has the replica's lock serves.
	Hot Tier = "hot"
	// Warm: no engine of the replica holds GPU memory. None is started, and none wakes but for
	// POST /v1/wake.
	Warm Tier = "warm"
)

// Record is what the shims of a replica must know after a crash. They share one, on the
// replica's node, and it outlives all of them.
//
// It says Warm before an engine begins to sleep, and Hot once a woken engine serves, so a crash
// at any moment between leaves a replica that holds no GPU memory.
type Record struct {
	Wanted Tier `json:"wanted"`
	// Loads: Wanted is Warm, and the engines load their model first. They hold GPU memory until the first
	// POST /v1/sleep.
	Loads bool `json:"loads,omitempty"`
	// Since is when Wanted changed, by the node's clock, and Role is whose shim changed it.
	Since time.Time `json:"since,omitzero"`
	Role  string    `json:"role,omitempty"`
	// Leader is the engine that serves, or was the last one to do so, and LastEnd is the last end of
	// one that did. After an end that nobody could record, LastEnd is that of an earlier one.
	Leader  Leader `json:"leader,omitzero"`
	LastEnd End    `json:"last_end,omitzero"`
	// GPUs are those to which a wake has moved the replica, by UUID: the environment of a shim
	// that is restarted names those of its job. Empty: those of the job.
	GPUs []string `json:"gpus,omitempty"`
	// Key is the engines' API key and Offer its replica.Engine.Offer. An engine that is restarted has
	// the same ones: gateways that cannot reach Consul use it on.
	Key   string `json:"key,omitempty"`
	Offer string `json:"offer,omitempty"`
	// Layouts are what the replica has in the GPU memory service, which keeps it for the next
	// engine. "remuda gms clear" frees it once the last engine has stopped for good.
	Layouts []offload.Layout `json:"layouts,omitempty"`
}

const (
	// recordFile is the record's name in its directory; newRecordFile is what replaces it.
	recordFile, newRecordFile = "record.json", "record.json.new"
	// recordLockTimeout bounds the wait for another shim of the replica, which holds the lock
	// for one small write.
	recordLockTimeout = 5 * time.Second
	// maxRecord is the largest record that is read, in bytes. A layout has some hundred.
	maxRecord = 1 << 20
)

// records reads and writes the record in a directory that belongs to the shim's user alone.
// Without a directory the record is in memory and ends with the shim. Methods may be called from
// several goroutines, and the shims of a pair may use one directory.
type records struct {
	mu sync.Mutex
	// dir stays open, so that renaming the directory gives the shim no other record.
	dir    *os.File
	memory Record
}

// openRecords makes the directory unless it exists, in one that does.
func openRecords(path string) (*records, error) {
	r := &records{memory: Record{Wanted: Hot}}
	if path == "" {
		return r, nil
	}
	var err error
	if r.dir, err = private.Dir(path); err != nil {
		return nil, fmt.Errorf("record: %w", err)
	}
	return r, nil
}

// durable reports whether the record outlives the shim.
func (r *records) durable() bool { return r.dir != nil }

// read returns the record. An absent one is Hot. One that cannot be read counts as Warm: an engine
// that sleeps for too long costs less than one that takes memory that is another's. A damaged one
// is Warm without an error, and the next update replaces it.
func (r *records) read() (Record, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.readLocked()
}

func (r *records) readLocked() (Record, error) {
	if r.dir == nil {
		return r.memory, nil
	}
	rec, err := r.load()
	if errors.Is(err, fs.ErrNotExist) {
		return Record{Wanted: Hot}, nil
	}
	if err != nil {
		return Record{Wanted: Warm}, fmt.Errorf("read the record: %w", err)
	}
	return rec, nil
}

func (r *records) load() (Record, error) {
	f, err := r.open(recordFile, unix.O_RDONLY)
	if err != nil {
		return Record{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Record{}, err
	}
	if !info.Mode().IsRegular() {
		return Record{}, fmt.Errorf("%s is %s: must be a file: remove it", f.Name(), info.Mode().Type())
	}
	if err := private.CheckOwner(f, 0o022); err != nil {
		return Record{}, err
	}
	raw, err := io.ReadAll(io.LimitReader(f, maxRecord))
	if err != nil {
		return Record{}, err
	}
	var rec Record
	if json.Unmarshal(raw, &rec) != nil || rec.Wanted != Hot && rec.Wanted != Warm {
		rec = Record{Wanted: Warm}
	}
	if rec.Since.IsZero() {
		rec.Since = info.ModTime().UTC()
	}
	return rec, nil
}

// open opens a file in the directory. It neither follows a link nor waits for a pipe.
func (r *records) open(name string, flags int) (*os.File, error) {
	path := filepath.Join(r.dir.Name(), name)
	fd, err := unix.Openat(int(r.dir.Fd()), name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// update changes the record as a whole: a crash leaves the old one or the new one. It does nothing
// if change changes nothing.
func (r *records) update(change func(*Record)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dir == nil {
		change(&r.memory)
		return nil
	}
	// The shims of a pair may write at once.
	fd := int(r.dir.Fd())
	for deadline := time.Now().Add(recordLockTimeout); ; {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(deadline) {
			return fmt.Errorf("write the record: lock %s, which another shim of the replica may hold: %w", r.dir.Name(), err)
		}
		time.Sleep(pollFast)
	}
	defer func() { _ = unix.Flock(fd, unix.LOCK_UN) }()
	before, err := r.readLocked()
	if err != nil {
		return err
	}
	rec := before
	change(&rec)
	if reflect.DeepEqual(rec, before) {
		return nil
	}
	if err := r.write(rec); err != nil {
		return fmt.Errorf("write the record: %w", err)
	}
	return nil
}

func (r *records) write(rec Record) error {
	raw, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	f, err := r.open(newRecordFile, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC)
	if err != nil {
		return err
	}
	_, err = f.Write(append(raw, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	fd := int(r.dir.Fd())
	if err := unix.Renameat(fd, newRecordFile, fd, recordFile); err != nil {
		return fmt.Errorf("replace %s: %w", filepath.Join(r.dir.Name(), recordFile), err)
	}
	return r.dir.Sync()
}

// record returns the record and tells the probes what is wanted. An error is logged.
func (s *Shim) record() Record {
	rec, err := s.records.read()
	if err != nil {
		s.logger.Error("cannot read the record: no engine takes GPU memory", "error", err)
	}
	s.mu.Lock()
	s.machine.SetWanted(rec.Wanted)
	s.mu.Unlock()
	s.metrics.isParked(s.parked(rec))
	return rec
}

// parked reports whether the record keeps the engine asleep across restarts.
func (s *Shim) parked(rec Record) bool {
	return rec.Wanted == Warm && !rec.Loads && s.records.durable()
}

// EnvStart is "warm" for Config.StartWarm. The controller sets it in the replica's job.
const EnvStart = "REMUDA_START"

// TaskStart reads EnvStart.
func TaskStart() (warm bool, err error) {
	switch raw := os.Getenv(EnvStart); raw {
	case "":
		return false, nil
	case string(Warm):
		return true, nil
	default:
		return false, fmt.Errorf("$%s is %q: must be %s or empty", EnvStart, raw, Warm)
	}
}

// begin applies Config.StartWarm to a new record: the first shim of a pair does it for both. A file, be it damaged,
// has a time.
func (s *Shim) begin() error {
	if !s.cfg.StartWarm {
		return nil
	}
	return s.records.update(func(rec *Record) {
		if rec.Since.IsZero() {
			rec.Loads, rec.Wanted, rec.Since, rec.Role = true, Warm, time.Now().UTC(), s.cfg.Role
		}
	})
}

// want records what is wanted of the replica, unless that is what the record says. Nothing loads to sleep
// any more.
func (s *Shim) want(tier Tier) error {
	changed := false
	err := s.records.update(func(rec *Record) {
		if rec.Wanted != tier || rec.Loads {
			rec.Wanted, rec.Since, rec.Role, rec.Loads, changed = tier, time.Now().UTC(), s.cfg.Role, false, true
		}
	})
	if err == nil && changed {
		s.logger.Info("what is wanted of the replica has changed", "wanted", tier, "across_restarts", s.records.durable())
	}
	return err
}
