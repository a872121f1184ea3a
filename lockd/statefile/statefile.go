// Package statefile keeps one small document on disk so that it survives any
// crash of its writer or its machine, and so that a document that is damaged or
// older than the newest one is refused instead of believed.
//
// A file has two slots, written in turn and in place, each with a generation, a
// length and a checksum: a write that is torn leaves the slot before it whole.
// A witness file beside it ("<path>.gen") has the newest generation that was
// surely written: a state file that was truncated, damaged or replaced by an
// older copy falls behind it. (Both files brought back together from one older
// copy cannot be told from the truth.)
//
// The files are locked while they are open: two writers cannot share them.
package statefile

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Errors of Open and Save; the ones returned wrap them.
var (
	// ErrInUse: another process has the file open.
	ErrInUse = errors.New("state file is in use by another lockd")
	// ErrCorrupt: no slot is whole, or what should be there is not.
	ErrCorrupt = errors.New("state file is damaged")
	// ErrRolledBack: the file is older than one that was written before.
	ErrRolledBack = errors.New("state file has been rolled back")
	// ErrReplaced: the path names another file than the one that is open.
	ErrReplaced = errors.New("state file was moved, deleted or replaced")
)

const (
	// slotSize leaves holes that take no space on disk.
	slotSize = 4 << 20
	// magic begins every slot.
	magic = "remuda-lockd-state/1"
	// advice ends the errors that need a person.
	advice = "if no holder of its locks is alive, delete %s and %s and start lockd again"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// File is an open state file. It is not safe for concurrent use.
type File struct {
	path    string
	state   *os.File
	witness *os.File
	// generation is the newest that is durable in state, 0 for none.
	generation uint64
	// witnessed is the newest that is in witness.
	witnessed uint64
}

// Open opens or creates the file and returns its newest document, nil where that
// is empty, as in a new file.
func Open(path string) (*File, []byte, error) {
	f := &File{path: path}
	doc, err := f.open()
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("state file %s: %w", path, err), f.Close())
	}
	return f, doc, nil
}

func (f *File) witnessPath() string { return f.path + ".gen" }

func (f *File) advise(err error, what string) error {
	return fmt.Errorf("%w: %s: "+advice, err, what, f.path, f.witnessPath())
}

func (f *File) open() ([]byte, error) {
	stateIsNew, witnessIsNew := false, false
	var err error
	if f.state, stateIsNew, err = openOrCreate(f.path); err != nil {
		return nil, err
	}
	if f.witness, witnessIsNew, err = openOrCreate(f.witnessPath()); err != nil {
		return nil, err
	}
	doc, generation, err := newest(f.state)
	if err != nil {
		return nil, err
	}
	_, witnessed, err := newest(f.witness)
	if err != nil {
		return nil, err
	}
	switch {
	case witnessed == 0 && generation <= 1:
		return nil, f.initialise()
	case stateIsNew:
		return nil, f.advise(ErrRolledBack, fmt.Sprintf("it is missing or empty and had generation %d", witnessed))
	case generation == 0:
		return nil, f.advise(ErrCorrupt, "it has no complete document")
	case witnessIsNew:
		return nil, f.advise(ErrCorrupt, "its witness is missing or empty")
	case witnessed == 0:
		return nil, f.advise(ErrCorrupt, "its witness has no complete entry")
	case generation < witnessed:
		return nil, f.advise(ErrRolledBack, fmt.Sprintf("it has generation %d and had generation %d", generation, witnessed))
	}
	f.generation, f.witnessed = generation, witnessed
	if len(doc) == 0 {
		doc = nil
	}
	return doc, nil
}

// initialise begins with an empty document, witnessed before the caller can
// write anything: where the witness has nothing, nothing was ever saved.
func (f *File) initialise() error {
	if err := write(f.state, 1, nil); err != nil {
		return err
	}
	f.generation = 1
	if err := f.Settle(); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(f.path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// openOrCreate opens and locks a file; fresh tells that it is new or empty.
func openOrCreate(path string) (file *os.File, fresh bool, err error) {
	file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, false, err
	}
	info, err := file.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s is not a regular file", path)
	default:
		err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrInUse
		}
	}
	if err != nil {
		return nil, false, errors.Join(err, file.Close())
	}
	return file, info.Size() == 0, nil
}

// newest returns the whole slot with the highest generation, 0 for none.
func newest(file *os.File) (doc []byte, generation uint64, err error) {
	for slot := range int64(2) {
		d, g, err := readSlot(file, slot)
		if err != nil {
			return nil, 0, err
		}
		if g > generation {
			doc, generation = d, g
		}
	}
	return doc, generation, nil
}

// readSlot returns generation 0 for a slot that is not whole.
func readSlot(file *os.File, slot int64) ([]byte, uint64, error) {
	r := io.NewSectionReader(file, slot*slotSize, slotSize)
	head := make([]byte, 96)
	n, err := io.ReadFull(r, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, 0, err
	}
	line, _, found := bytes.Cut(head[:n], []byte("\n"))
	if !found {
		return nil, 0, nil
	}
	var generation uint64
	var length int
	var sum uint32
	if _, err := fmt.Sscanf(string(line), magic+" %d %d %08x", &generation, &length, &sum); err != nil || length < 0 || length > slotSize-len(head) {
		return nil, 0, nil //nolint:nilerr // not whole
	}
	doc := make([]byte, length)
	if _, err := r.ReadAt(doc, int64(len(line)+1)); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, 0, nil
		}
		return nil, 0, err
	}
	if string(line) != header(generation, doc) {
		return nil, 0, nil
	}
	return doc, generation, nil
}

// header is a slot's first line; the checksum is over the generation, too.
func header(generation uint64, doc []byte) string {
	sum := crc32.Update(crc32.Checksum(fmt.Appendf(nil, "%d", generation), castagnoli), castagnoli, doc)
	return fmt.Sprintf("%s %d %d %08x", magic, generation, len(doc), sum)
}

// Save writes a document. When it returns nil the document is on disk; after an
// error the one before it still is, and perhaps the new one too. Call Settle
// some time after it.
func (f *File) Save(doc []byte) error {
	if err := f.check(); err != nil {
		return err
	}
	if err := f.Settle(); err != nil {
		return err
	}
	if err := write(f.state, f.generation+1, doc); err != nil {
		return fmt.Errorf("write state file %s: %w", f.path, err)
	}
	f.generation++
	return nil
}

// Settle notes the newest generation in the witness. Until then an older copy of
// the state file would go unnoticed, nothing worse: so it need not delay what
// waits for Save.
func (f *File) Settle() error {
	if f.witnessed == f.generation {
		return nil
	}
	if err := write(f.witness, f.generation, nil); err != nil {
		return fmt.Errorf("write state file %s: %w", f.witnessPath(), err)
	}
	f.witnessed = f.generation
	return nil
}

// write puts a document into the slot of its generation.
func write(file *os.File, generation uint64, doc []byte) error {
	head := header(generation, doc)
	if len(head)+1+len(doc) > slotSize {
		return fmt.Errorf("the document has %d bytes: must be at most %d", len(doc), slotSize-len(head)-1)
	}
	buf := make([]byte, 0, len(head)+2+len(doc))
	buf = append(append(append(buf, head...), '\n'), doc...)
	if _, err := file.WriteAt(buf, int64(generation%2)*slotSize); err != nil {
		return err
	}
	return unix.Fdatasync(int(file.Fd()))
}

// check makes sure that the path still names the open file: a lockd must not
// write into a file that nobody will read.
func (f *File) check() error {
	named, err := os.Stat(f.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	open, oerr := f.state.Stat()
	if oerr != nil {
		return oerr
	}
	if err != nil || !os.SameFile(named, open) {
		return fmt.Errorf("%w: %s: restart lockd", ErrReplaced, f.path)
	}
	return nil
}

// Close unlocks and closes the files.
func (f *File) Close() error {
	var errs []error
	for _, file := range []*os.File{f.state, f.witness} {
		if file != nil {
			errs = append(errs, file.Close())
		}
	}
	return errors.Join(errs...)
}
