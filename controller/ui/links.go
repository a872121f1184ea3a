package ui

import "net/url"

// Paths of pages about one thing. Names are in the query: a name may contain anything.
const (
	modelPath     = Path + "/model"
	nodesPath     = Path + "/nodes"
	decisionsPath = Path + "/decisions"
	usagePath     = Path + "/usage"
	serversPath   = Path + "/servers"
	cordonPath    = Path + "/cordon"
	evictPath     = Path + "/evict"
	revertPath    = Path + "/revert"
	tryPath       = Path + "/try"
	chatPath      = Path + "/chat"
)

func modelLink(name string) string { return modelPath + "?" + url.Values{"name": {name}}.Encode() }

// nodeLink is the part of the page of nodes that shows one.
func nodeLink(id string) string {
	return nodesPath + "?" + url.Values{"q": {id}}.Encode() + "#node-" + id
}
