package keeper

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"

	"golang.org/x/sys/unix"
)

// HandoverEnv names the descriptor at which a keeper that replaced another one finds
// the list of the other's records.
const HandoverEnv = "REMUDA_GMS_HANDOVER" // set by `remuda gms` for the program that replaces it

// handover is the list. It is read by the next version of this program: a field that
// goes needs a new Version, a field that comes must be of no use to an older reader.
type handover struct {
	Version int              `json:"version"`
	Starts  uint64           `json:"starts"`
	Records map[string][]int `json:"records"`
}

const handoverVersion = 1

// exec replaces this process by a program, which has the records then. It returns only
// after an error, and the records are as before then. No service may run.
func (k *Keeper) exec(program string) (err error) {
	raw, err := json.Marshal(handover{handoverVersion, k.starts, k.store.records})
	if err != nil {
		return err
	}
	list, err := writeBlob(raw)
	if err != nil {
		return err
	}
	keep := []int{list}
	for _, fds := range k.store.records {
		keep = append(keep, fds...)
	}
	inherit := func(yes bool) (err error) {
		flags := unix.FD_CLOEXEC
		if yes {
			flags = 0
		}
		for _, fd := range keep {
			_, setErr := unix.FcntlInt(uintptr(fd), unix.F_SETFD, flags)
			err = errors.Join(err, setErr)
		}
		return err
	}
	if err = inherit(true); err == nil {
		// A second order to upgrade must not end the program before it waits for one.
		signal.Ignore(unix.SIGHUP)
		err = unix.Exec(program, append([]string{program}, k.cfg.Args...), append(os.Environ(), HandoverEnv+"="+strconv.Itoa(list)))
		err = fmt.Errorf("execute %s: %w", program, err)
		if k.cfg.Rearm != nil {
			k.cfg.Rearm()
		}
	}
	return errors.Join(err, inherit(false), unix.Close(list))
}

// takeOver takes the records of the keeper whose process this was, if there was one.
func (k *Keeper) takeOver() error {
	value := os.Getenv(HandoverEnv)
	if value == "" {
		return nil
	}
	if err := os.Unsetenv(HandoverEnv); err != nil {
		return err
	}
	list, err := strconv.Atoi(value)
	if err != nil {
		return fmt.Errorf("%s is %q: must be the number of a descriptor", HandoverEnv, value)
	}
	var h handover
	raw, err := readBlob(list)
	if err == nil {
		err = json.Unmarshal(raw, &h)
	}
	if err == nil && h.Version != handoverVersion {
		err = fmt.Errorf("it has version %d: must be %d", h.Version, handoverVersion)
	}
	if err != nil {
		return fmt.Errorf("read the records of the keeper that was replaced: %w", err)
	}
	for name, fds := range h.Records {
		for _, fd := range fds {
			unix.CloseOnExec(fd)
		}
		k.store.records[name] = fds
	}
	k.starts = h.Starts
	k.log.Info("replaced the program of the keeper", "records", len(h.Records), "descriptors", k.store.held())
	return nil
}
