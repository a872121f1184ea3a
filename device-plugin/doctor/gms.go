package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"remuda/device-plugin/ledger"
)

// weightsTag is the tag under which engines share weights.
const weightsTag = "weights"

// checkGMS looks at the sockets of the GPU memory service.
func (r *round) checkGMS() {
	const check = "GMS sockets"
	dir := r.cfg.GMSSocketDir
	if dir == "" {
		r.add(check, Note, "no GPU memory service is configured", "")
		return
	}
	states, err := ledger.Read(r.ctx, dir)
	if err != nil {
		r.add(check, Problem, err.Error(), "correct gms_socket_dir, or the directory's owner and mode")
		return
	}
	if len(states) == 0 {
		r.add(check, Note, "none in "+dir+": no GPU memory service is running", "run jobs/node.nomad.hcl on the node if engines should share weights")
		return
	}
	served, dead := 0, 0
	var weights []string
	for _, s := range states {
		path := filepath.Join(dir, ledger.SocketName(s.GPU, s.Tag))
		if s.Err != "" {
			dead++
			r.add(check, Problem, fmt.Sprintf("%s does not respond: %s", path, s.Err),
				"check that remuda gms is running; its next start replaces a stale socket")
			continue
		}
		served++
		if s.Tag == weightsTag {
			weights = append(weights, s.GPU)
		}
		if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o077 != 0 {
			r.add(check, Warning, fmt.Sprintf("%s has mode %04o: other users can try to connect", path, info.Mode().Perm()), "set it to 0600, which remuda gms uses")
		}
		if r.probed && !slices.Contains(r.uuids, s.GPU) {
			r.add(check, Warning, path+" is for a GPU that this node does not have", "correct the -gpu flags of remuda gms")
		}
	}
	for _, gpu := range r.uuids {
		if served > 0 && !slices.Contains(weights, gpu) && !slices.ContainsFunc(states, func(s ledger.State) bool { return s.GPU == gpu && s.Err != "" }) {
			r.add(check, Note, "GPU "+gpu+" has no socket for weights: engines on it cannot share them", "")
		}
	}
	if dead == 0 {
		r.add(check, OK, fmt.Sprintf("%d sockets in %s respond", served, dir), "")
	}
}
