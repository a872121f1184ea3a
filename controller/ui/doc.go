// Package ui is the controller's web page at /ui: what the API answers, as HTML.
//
// It guarantees: every number on a page comes from the API of the same server, asked in this
// process with the token of the person, so that rights, errors and the way to the leader are
// the API's; no text of users becomes markup; a page loads nothing from another origin and
// contains no inline script or style; and a request of another origin changes nothing.
//
// A page has a part that stays, and a live part (the element "live"). The script asks for the
// live part again and again with the index that it was made at. The request waits until the
// state is another one, at most for liveWait.
package ui
