// The web client of the notes app: a library in IndexedDB that syncs when the server can be reached.
//
// The same rules as penstock/apps/notes/device, for the table `notes` only:
// - a write changes the note and queues the change in one transaction;
// - a queued change leaves the outbox after the server reported on it;
// - the cursor moves in the transaction that stores its rows.
'use strict'

const TABLE = 'notes'
const PAGE = 1000
const BATCH = 500
// The server takes 8 MB; a character has at most 3 bytes here.
const BATCH_CHARACTERS = 1_000_000
// The server refuses changes that are this far in its future.
const CLOCK_TOLERANCE_MS = 300_000
const TIMEOUT_MS = 30_000
// How encrypted texts begin.
const SEALED = 'enc:v1:'
// The refusal of a readable text in an encrypted library: the server must not get it, and this page has no key.
const LOCKED = { code: 'locked', message: 'the library is encrypted: write the note on a device that has the key' }
const COLUMNS = ['id', 'book_id', 'text', 'page', 'chapter', 'tags', 'image_path', 'source', 'source_id', 'source_meta',
  'created_at', 'updated_at', 'deleted']

// The database

const opening = new Promise((resolve, reject) => {
  const request = indexedDB.open('penstock-notes', 1)
  request.onupgradeneeded = () => {
    request.result.createObjectStore('notes', { keyPath: 'id' })
    request.result.createObjectStore('outbox', { keyPath: 'seq', autoIncrement: true })
    request.result.createObjectStore('shelf', { keyPath: 'number', autoIncrement: true })
    request.result.createObjectStore('meta')
  }
  request.onsuccess = () => resolve(request.result)
  request.onerror = () => reject(request.error)
})

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result)
    request.onerror = () => reject(request.error)
  })
}

// Runs `work` in one transaction over all stores. `work` must await only requests of its stores.
async function transaction(mode, work) {
  const db = await opening
  const names = ['notes', 'outbox', 'shelf', 'meta']
  const running = db.transaction(names, mode)
  const ended = new Promise((resolve, reject) => {
    running.oncomplete = resolve
    running.onabort = () => reject(running.error)
  })
  const stores = Object.fromEntries(names.map((name) => [name, running.objectStore(name)]))
  let result
  try {
    result = await work(stores)
  } catch (error) {
    running.abort()
    await ended.catch(() => {})
    throw error
  }
  await ended
  return result
}

const getMeta = (key) => transaction('readonly', (db) => done(db.meta.get(key)))

// Edits

// The user whose notes this page shows.
let shownUser

// Runs `work` on the notes of that user: another tab may have signed out, or signed somebody else in.
async function write(work) {
  try {
    await transaction('readwrite', async (db) => {
      if (await done(db.meta.get('user')) !== shownUser) throw new Problem('Not saved: another user signed in.')
      await work(db)
    })
  } catch (error) {
    if (!(error instanceof Problem)) throw error
    await draw(undefined, error.message)
    return false
  }
  await show()
  return true
}

// An error for the user to read.
class Problem extends Error {}

const isSealed = (note) => note.text?.startsWith(SEALED) ?? false

const hasPlainText = (record) => Boolean(record.text) && !isSealed(record)

// Whether devices encrypt this library.
const isEncrypted = async (db) => (await done(db.notes.getAll())).some(isSealed)

// Adds a note, or changes the one with this id. Returns whether it was saved.
async function change(values) {
  return write(async (db) => {
    const old = values.id && await done(db.notes.get(values.id))
    if (values.id && !old) throw new Problem('Not saved: the note is no longer here.')
    if (hasPlainText(values) && await isEncrypted(db)) throw new Problem(`Not saved: ${LOCKED.message}.`)
    // Always later than the note that was edited, even if the clock is behind.
    const stamp = Math.max(Date.now(), old ? old.updated_at + 1 : 0)
    const fresh = { id: crypto.randomUUID().replaceAll('-', ''), tags: [], deleted: false, created_at: stamp }
    const note = { ...fresh, ...old, ...values, updated_at: stamp }
    await done(db.notes.put(note))
    await done(db.outbox.add({ id: note.id, payload: Object.fromEntries(COLUMNS.map((name) => [name, note[name] ?? null])) }))
  })
}

// One change per note: later fields replace earlier ones.
function collapse(entries) {
  const found = new Map()
  for (const { seq, id, payload } of entries) {
    found.set(id, { record: { ...found.get(id)?.record, ...payload }, last: seq })
  }
  return [...found.values()]
}

// The server

class Refusal extends Error {
  constructor(status, code, message) {
    super(message)
    this.status = status
    this.code = code
  }
}

// The token of the sync that runs. A sync never goes on as another user.
let token = null

// Whether the user is still the one for whom the sync began; called in the transaction that writes.
async function checkUser(db) {
  if (await done(db.meta.get('token')) !== token) throw new Error('signed out')
}

async function request(path, body) {
  const headers = { Authorization: `Bearer ${token}`, 'Content-Type': 'application/json' }
  const options = { method: body ? 'POST' : 'GET', headers, body: body && JSON.stringify(body), cache: 'no-store' }
  // A connection that hangs must not hold up every later sync.
  const response = await fetch(`/rest/v1/${path}`, { ...options, signal: AbortSignal.timeout(TIMEOUT_MS) })
  const answer = await response.json()
  if (!response.ok) throw new Refusal(response.status, answer.code, answer.message ?? answer.detail ?? response.statusText)
  return answer
}

const readState = () => request('rpc/sync_state', { p_schema: 'notes' })

// Gives changes of a clock that is ahead the server's time: it would refuse them.
async function correctTimes(server_ms) {
  await transaction('readwrite', async (db) => {
    await checkUser(db)
    for (const entry of await done(db.outbox.getAll())) {
      if (entry.payload.updated_at <= server_ms + CLOCK_TOLERANCE_MS) continue
      await done(db.outbox.put({ ...entry, payload: { ...entry.payload, updated_at: server_ms } }))
      const note = await done(db.notes.get(entry.id))
      if (note?.updated_at > server_ms) await done(db.notes.put({ ...note, updated_at: server_ms }))
    }
  })
}

// Before the first sync: texts that the server could read do not get into an encrypted library. Stores nothing of what it
// reads: a pull comes after the push.
async function withholdTexts() {
  const sealed = `${TABLE}?text=like.${SEALED}*&select=id&limit=1`
  if ((await request(sealed)).length === 0) return
  await transaction('readwrite', async (db) => {
    await checkUser(db)
    const queued = await done(db.outbox.getAll())
    for (const change of collapse(queued)) if (hasPlainText(change.record)) await unqueue(db, queued, change, LOCKED)
  })
}

// Changes that go together, in their order.
function batches(changes) {
  const found = []
  let size = Infinity
  for (const change of changes) {
    const more = JSON.stringify(change.record).length
    if (size + more > BATCH_CHARACTERS || found.at(-1).length === BATCH) {
      found.push([])
      size = 0
    }
    found.at(-1).push(change)
    size += more
  }
  return found
}

async function push() {
  const changes = await transaction('readonly', async (db) => {
    await checkUser(db)
    return collapse(await done(db.outbox.getAll()))
  })
  for (const batch of batches(changes)) {
    const sent = batch.map(({ record }) => ({ table: TABLE, record }))
    const outcomes = await request('rpc/push_changes', { p_changes: sent, p_schema: 'notes' })
    await transaction('readwrite', async (db) => {
      await checkUser(db)
      const queued = await done(db.outbox.getAll())
      for (const { id, outcome, code, message } of outcomes) {
        const change = batch.find((change) => change.record.id === id)
        await unqueue(db, queued, change, outcome === 'refused' ? { code, message } : null)
      }
    })
  }
}

// Takes a change out of the outbox. If it was refused it goes to the shelf: once, also if two tabs have sent it.
async function unqueue(db, queued, { record, last }, refusal) {
  const covered = queued.filter((entry) => entry.id === record.id && entry.seq <= last)
  for (const entry of covered) await done(db.outbox.delete(entry.seq))
  if (refusal && covered.length > 0) await done(db.shelf.add({ record, ...refusal }))
}

async function pull(state) {
  const there = state.tables[TABLE]
  if (!there) return
  const isWhole = there.horizon > (await getMeta('horizon') ?? 0)
  let cursor = isWhole ? 0 : await getMeta('lastSeq') ?? 0
  const seen = new Set()
  let limit = PAGE
  while (cursor < there.seq) {
    let page
    try {
      page = await request(`${TABLE}?change_seq=gt.${cursor}&order=change_seq&limit=${limit}`)
    } catch (error) {
      // The rows are too large for one answer.
      if (error.status !== 413 || limit === 1) throw error
      limit = Math.floor(limit / 2)
      continue
    }
    if (page.length === 0) break
    cursor = page.at(-1).change_seq
    await transaction('readwrite', async (db) => {
      await checkUser(db)
      const waiting = new Set((await done(db.outbox.getAll())).map((entry) => entry.id))
      for (const row of page) {
        seen.add(row.id)
        await merge(db, row, waiting.has(row.id), isWhole)
      }
      if (!isWhole) await done(db.meta.put(cursor, 'lastSeq'))
    })
  }
  if (isWhole) await finishWhole(seen, cursor, there.horizon)
}

// Last write wins. Of two writes in the same millisecond the server's wins, once ours was pushed.
async function merge(db, remote, isWaiting, isWhole) {
  const local = await done(db.notes.get(remote.id))
  if (local && !(isWhole && !isWaiting)) {
    if (remote.updated_at < local.updated_at) return
    if (remote.updated_at === local.updated_at && isWaiting) return
  }
  if (isWaiting) {
    for (const entry of await done(db.outbox.getAll())) {
      if (entry.id === remote.id) await done(db.outbox.delete(entry.seq))
    }
  }
  await done(db.notes.put(remote))
}

// Rows were deleted permanently: remove those that the server did not send.
async function finishWhole(seen, cursor, horizon) {
  await transaction('readwrite', async (db) => {
    await checkUser(db)
    const waiting = new Set((await done(db.outbox.getAll())).map((entry) => entry.id))
    for (const id of await done(db.notes.getAllKeys())) {
      if (!seen.has(id) && !waiting.has(id)) await done(db.notes.delete(id))
    }
    await done(db.meta.put(cursor, 'lastSeq'))
    await done(db.meta.put(horizon, 'horizon'))
  })
}

let running = null
let retry = null
let pause = 1000

// Push, then pull. One at a time; a call during a sync starts another one afterwards.
function sync() {
  running = (running ?? Promise.resolve()).then(syncOnce)
  return running
}

async function syncOnce() {
  token = await getMeta('token')
  if (!token) return
  clearTimeout(retry)
  try {
    const state = await readState()
    if (await getMeta('lastSyncAt') === undefined) await withholdTexts()
    await correctTimes(state.server_ms)
    await push()
    await pull(await readState())
    await transaction('readwrite', async (db) => {
      await checkUser(db)
      await done(db.meta.put(state.server_ms, 'lastSyncAt'))
    })
    pause = 1000
    await show('Synced')
  } catch (error) {
    if (await getMeta('token') !== token) return
    if (error instanceof Refusal && error.status === 401) return expire()
    await show(error instanceof Refusal ? 'Not synced' : 'Offline', error instanceof Refusal ? error.message : '')
    retry = setTimeout(sync, pause)
    pause = Math.min(pause * 2, 60_000)
  }
}

// Refused changes

// Queues a refused change again.
async function retryRefused({ number, record }) {
  await write(async (db) => {
    if (hasPlainText(record) && await isEncrypted(db)) throw new Problem(`Not sent: ${LOCKED.message}.`)
    await done(db.shelf.delete(number))
    await done(db.outbox.add({ id: record.id, payload: record }))
  })
  await sync()
}

// Drops a refused change. The next pull brings the server's note, if it has one.
async function discardRefused({ number, record }) {
  await write(async (db) => {
    await done(db.shelf.delete(number))
    const isWaiting = (await done(db.outbox.getAll())).some((entry) => entry.id === record.id)
    if (!isWaiting) await done(db.notes.delete(record.id))
    await done(db.meta.put(0, 'lastSeq'))
  })
  await sync()
}

// The page

const find = (id) => document.getElementById(id)

// All tabs show the same.
const tabs = new BroadcastChannel('penstock-notes')
tabs.onmessage = ({ data }) => draw(...data)

function show(state, problem = '') {
  tabs.postMessage([state, problem])
  return draw(state, problem)
}

async function draw(state, problem) {
  const { notes, waiting, shelf, token, user } = await transaction('readonly', async (db) => ({
    notes: await done(db.notes.getAll()),
    waiting: await done(db.outbox.getAll()),
    shelf: await done(db.shelf.getAll()),
    token: await done(db.meta.get('token')),
    user: await done(db.meta.get('user')),
  }))
  if (user !== shownUser) forgetTyped()
  shownUser = user
  const isLocked = notes.some(isSealed)
  find('sign-in').hidden = Boolean(token)
  find('sync').hidden = find('sign-out').hidden = find('notes').hidden = !token
  find('add').hidden = !token || isLocked
  find('locked').hidden = !token || !isLocked
  const changes = new Set(waiting.map((entry) => entry.id)).size
  const word = changes === 1 ? '1 change' : `${changes} changes`
  if (!token) find('status').textContent = 'Signed out'
  else if (changes) find('status').textContent = `${state ?? (navigator.onLine ? 'Syncing' : 'Offline')}: ${word} waiting`
  else if (state) find('status').textContent = state
  find('problem').textContent = problem
  if (!token) endUndo()
  const shown = notes.filter((note) => token && !note.deleted).sort((a, b) => b.created_at - a.created_at)
  // While a note is edited the list stays as it is, so that nothing typed is lost, also while the token is renewed.
  if (!find('notes').classList.contains('editing')) redraw(shown, isLocked)
  find('refused').hidden = !token || shelf.length === 0
  find('shelf').replaceChildren(...(token ? shelf : []).map(drawRefused))
}

// The keyboard stays on its button: a sync in the background draws the list, too.
function redraw(shown, isLocked) {
  const focused = find('notes').contains(document.activeElement) ? document.activeElement : null
  const id = focused?.closest('li').id
  find('notes').replaceChildren(...shown.map((note) => drawNote(note, isLocked)))
  if (!focused) return
  const buttons = [...find(id)?.querySelectorAll('button') ?? []]
  buttons.find((made) => made.textContent === focused.textContent)?.focus({ preventScroll: true })
}

// Text is set as text: nothing of a note is read as HTML.
function item(text) {
  const line = document.createElement('li')
  const part = document.createElement('p')
  part.textContent = text
  line.append(part)
  return line
}

function button(label, onClick) {
  const made = document.createElement('button')
  made.type = 'button'
  made.textContent = label
  made.addEventListener('click', onClick)
  return made
}

function drawNote(note, isLocked) {
  const line = item(isSealed(note) ? 'Encrypted: open it on a device that has the key.' : note.text)
  line.id = `note-${note.id}`
  if (!isLocked) line.append(button('Edit', () => openEditor(line, note)))
  line.append(button('Delete', () => remove(note.id)))
  return line
}

// The last deleted note can be restored for a moment, and while the button has the focus.
const UNDO_MS = 10_000
let removed = null
let undoTimer = null

async function remove(id) {
  if (!await change({ id, deleted: true })) return
  removed = id
  find('undo').hidden = false
  // The button that was pressed is gone, and with it the place of the keyboard.
  find('restore').focus({ preventScroll: true })
  scheduleUndoEnd()
  await sync()
}

async function restore() {
  const id = removed
  endUndo()
  if (!await change({ id, deleted: false })) return
  find(`note-${id}`)?.querySelector('button')?.focus()
  await sync()
}

function scheduleUndoEnd() {
  clearTimeout(undoTimer)
  undoTimer = setTimeout(() => (find('restore') === document.activeElement ? scheduleUndoEnd() : endUndo()), UNDO_MS)
}

function endUndo() {
  clearTimeout(undoTimer)
  removed = null
  if (find('restore') === document.activeElement) find('main').focus({ preventScroll: true })
  find('undo').hidden = true
}

function drawRefused(refused) {
  const { record, code, message } = refused
  const line = item(`${(record.text ?? '').slice(0, 200)}: ${message} (${code})`)
  line.append(button('Try again', () => retryRefused(refused)), button('Discard', () => discardRefused(refused)))
  return line
}

function openEditor(line, note) {
  const form = document.createElement('form')
  const text = document.createElement('textarea')
  text.rows = 3
  text.required = true
  text.value = note.text
  text.setAttribute('aria-label', 'Text of the note')
  const close = () => {
    find('notes').classList.remove('editing')
    show()
  }
  const accept = document.createElement('button')
  accept.className = 'primary'
  accept.textContent = 'Save'
  form.append(text, accept, button('Cancel', close))
  form.addEventListener('submit', async (event) => {
    event.preventDefault()
    // A note that was deleted elsewhere meanwhile comes back.
    if (!await change({ id: note.id, text: text.value, deleted: false })) return
    close()
    await sync()
  })
  line.replaceChildren(form)
  find('notes').classList.add('editing')
  text.focus()
}

// Drops everything that was typed and not saved.
function forgetTyped() {
  find('notes').classList.remove('editing')
  find('add').reset()
  endUndo()
}

// Changes that the server does not have yet wait for the same user to sign in again.
async function signOut() {
  await transaction('readwrite', async (db) => {
    await done(db.meta.delete('token'))
    if (await done(db.outbox.count()) === 0) for (const store of Object.values(db)) await done(store.clear())
  })
  forgetTyped()
  await show('Signed out')
}

// The user goes on where the token ended.
async function expire() {
  await transaction('readwrite', (db) => done(db.meta.delete('token')))
  await show('Signed out', 'The access token is invalid or has expired. Sign in again.')
}

async function signIn(token) {
  const user = userOf(token)
  await transaction('readwrite', async (db) => {
    const before = await done(db.meta.get('user'))
    // Nothing of one user is pushed or shown as another's.
    if (before && before !== user) for (const store of Object.values(db)) await done(store.clear())
    await done(db.meta.put(user, 'user'))
    await done(db.meta.put(token, 'token'))
  })
  await show('Syncing')
  await sync()
}

// The user's id in a JSON Web Token; other tokens are used as they are.
function userOf(token) {
  try {
    return JSON.parse(atob(token.split('.')[1].replaceAll('-', '+').replaceAll('_', '/'))).sub ?? token
  } catch {
    return token
  }
}

find('add').addEventListener('submit', async (event) => {
  event.preventDefault()
  const text = find('text').value
  const user = shownUser
  find('add').reset()
  if (await change({ text })) await sync()
  else if (shownUser === user) find('text').value = text
})
find('sign-in').addEventListener('submit', async (event) => {
  event.preventDefault()
  const token = find('token').value.trim()
  find('sign-in').reset()
  await signIn(token)
})
find('restore').addEventListener('click', restore)
find('sync').addEventListener('click', () => {
  find('status').textContent = 'Syncing…'
  sync()
})
find('sign-out').addEventListener('click', signOut)
window.addEventListener('online', () => {
  pause = 1000
  sync()
})
window.addEventListener('offline', () => show('Offline'))
setInterval(() => document.visibilityState === 'visible' && sync(), 30_000)
if ('serviceWorker' in navigator) navigator.serviceWorker.register('offline.js').catch(() => {})
show().then(sync)
