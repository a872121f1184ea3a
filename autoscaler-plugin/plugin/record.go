package plugin

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"sync"
	"syscall"
	"time"
)

// Record is a decision with everything that it went by, as a line of the decisions file.
type Record struct {
	Time   time.Time `json:"time"`
	Call   Call      `json:"call"`
	Answer Answer    `json:"answer"`
	// Before is the hash of Call.State where that is left out, as an earlier record of the model
	// led to it; see Replayer.
	Before string `json:"state_hash,omitempty"`
}

// maxLine is how long a line of a decisions file may be.
const maxLine = 16 << 20

// ErrBrokenLine is what Records answers for a line that is no record, as one that was cut by
// a full disk. What comes after it can be read.
var ErrBrokenLine = errors.New("not a decision record")

// Records reads a decisions file. An error that is not ErrBrokenLine is the last one.
func Records(r io.Reader) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		lines := bufio.NewScanner(r)
		lines.Buffer(nil, maxLine)
		for n := 1; lines.Scan(); n++ {
			if len(bytes.TrimSpace(lines.Bytes())) == 0 {
				continue
			}
			var rec Record
			err := json.Unmarshal(lines.Bytes(), &rec)
			if err != nil {
				rec, err = Record{}, fmt.Errorf("line %d: %w: %w", n, ErrBrokenLine, err)
			}
			if !yield(rec, err) {
				return
			}
		}
		if err := lines.Err(); err != nil {
			yield(Record{}, err)
		}
	}
}

// How large a decisions file may become, and how many old ones are kept beside it.
const (
	MaxDecisions  = 64 << 20
	KeptDecisions = 2
)

// Decisions is a file of Records that is rotated: the old ones are NAME.1 and NAME.2.
// Several processes may write to the same one. It may be called from several goroutines at
// once.
type Decisions struct {
	path string
	most int64

	mu   sync.Mutex
	file *os.File
	// turn counts how often the file was another one than before.
	turn int64
}

// Turn is another number after each rotation that was noticed.
func (d *Decisions) Turn() int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.turn
}

// OpenDecisions opens a decisions file for more; most is how large it may become, in bytes.
func OpenDecisions(path string, most int64) (*Decisions, error) {
	d := &Decisions{path: path, most: most}
	if err := d.open(); err != nil {
		return nil, fmt.Errorf("decisions: %w", err)
	}
	return d, nil
}

func (d *Decisions) open() (err error) {
	d.file, err = os.OpenFile(d.path, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
	return err
}

// cut tells whether the file ends in the middle of a line, as after a full disk.
func (d *Decisions) cut() bool {
	info, err := d.file.Stat()
	if err != nil || info.Size() == 0 {
		return false
	}
	var last [1]byte
	_, err = d.file.ReadAt(last[:], info.Size()-1)
	return err == nil && last[0] != '\n'
}

// Close closes the file.
func (d *Decisions) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.file.Close()
}

// Write adds a record.
func (d *Decisions) Write(r *Record) error {
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("decisions: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.makeRoom(int64(len(line) + 1)); err != nil {
		return fmt.Errorf("decisions: %w", err)
	}
	line = append(line, '\n')
	if d.cut() {
		line = append([]byte{'\n'}, line...)
	}
	if _, err = d.file.Write(line); err != nil {
		return fmt.Errorf("decisions: %w", err)
	}
	return nil
}

// makeRoom rotates where n more bytes are too many, and goes over to the file of that name
// where another process has rotated.
func (d *Decisions) makeRoom(n int64) error {
	ours, there, err := d.same()
	if err != nil {
		return err
	}
	if there && (ours.Size() == 0 || ours.Size()+n <= d.most) {
		return nil
	}
	lock, err := os.OpenFile(d.path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if _, there, err = d.same(); err != nil {
		return err
	}
	if there {
		for i := KeptDecisions; i > 0; i-- {
			from := d.path
			if i > 1 {
				from = fmt.Sprintf("%s.%d", d.path, i-1)
			}
			if err := os.Rename(from, fmt.Sprintf("%s.%d", d.path, i)); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
	}
	old := d.file
	if err := d.open(); err != nil {
		d.file = old
		return err
	}
	d.turn++
	return old.Close()
}

// same tells whether the open file is still the one of its name.
func (d *Decisions) same() (os.FileInfo, bool, error) {
	ours, err := d.file.Stat()
	if err != nil {
		return nil, false, err
	}
	named, err := os.Stat(d.path)
	if errors.Is(err, os.ErrNotExist) {
		return ours, false, nil
	}
	return ours, err == nil && os.SameFile(ours, named), err
}
