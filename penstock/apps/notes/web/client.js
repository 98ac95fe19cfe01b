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

async function save(values) {
  await change(values)
  await sync()
}

async function change(values) {
  await transaction('readwrite', async (db) => {
    const old = values.id && await done(db.notes.get(values.id))
    // Always later than the note that was edited, even if the clock is behind.
    const stamp = Math.max(Date.now(), old ? old.updated_at + 1 : 0)
    const fresh = { id: crypto.randomUUID().replaceAll('-', ''), tags: [], deleted: false, created_at: stamp }
    const note = { ...fresh, ...old, ...values, updated_at: stamp }
    await done(db.notes.put(note))
    const payload = Object.fromEntries(COLUMNS.map((name) => [name, note[name] ?? null]))
    // An edit says nothing about `deleted`, so that a queued delete sticks.
    if (!('deleted' in values)) delete payload.deleted
    await done(db.outbox.add({ id: note.id, payload }))
  })
  await show()
}

// One change per note: later fields replace earlier ones.
function collapse(entries) {
  const found = new Map()
  for (const { seq, id, payload } of entries) {
    const before = found.get(id)?.record ?? { deleted: false }
    found.set(id, { record: { ...before, ...payload }, last: seq })
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
  const changes = collapse(await transaction('readonly', (db) => done(db.outbox.getAll())))
  for (const batch of batches(changes)) {
    const sent = batch.map(({ record }) => ({ table: TABLE, record }))
    const outcomes = await request('rpc/push_changes', { p_changes: sent, p_schema: 'notes' })
    await transaction('readwrite', async (db) => {
      await checkUser(db)
      const queued = await done(db.outbox.getAll())
      for (const { id, outcome, code, message } of outcomes) {
        const { record, last } = batch.find((change) => change.record.id === id)
        for (const entry of queued) {
          if (entry.id === id && entry.seq <= last) await done(db.outbox.delete(entry.seq))
        }
        if (outcome === 'refused') await done(db.shelf.add({ record, code, message }))
      }
    })
  }
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
    await correctTimes((await readState()).server_ms)
    await push()
    await pull(await readState())
    pause = 1000
    await show('Synced')
  } catch (error) {
    if (await getMeta('token') !== token) return
    if (error instanceof Refusal && error.status === 401) return signOut('The access token is invalid or has expired. Sign in again.')
    await show(error instanceof Refusal ? 'Not synced' : 'Offline', error instanceof Refusal ? error.message : '')
    retry = setTimeout(sync, pause)
    pause = Math.min(pause * 2, 60_000)
  }
}

// Refused changes

// Queues a refused change again.
async function retryRefused({ number, record }) {
  await transaction('readwrite', async (db) => {
    await done(db.shelf.delete(number))
    await done(db.outbox.add({ id: record.id, payload: record }))
  })
  await show()
  await sync()
}

// Drops a refused change. The next pull brings the server's note, if it has one.
async function discardRefused({ number, record }) {
  await transaction('readwrite', async (db) => {
    await done(db.shelf.delete(number))
    const isWaiting = (await done(db.outbox.getAll())).some((entry) => entry.id === record.id)
    if (!isWaiting) await done(db.notes.delete(record.id))
    await done(db.meta.delete('lastSeq'))
  })
  await show()
  await sync()
}

// The page

const find = (id) => document.getElementById(id)

async function show(state, problem = '') {
  const { notes, waiting, shelf, token } = await transaction('readonly', async (db) => ({
    notes: await done(db.notes.getAll()),
    waiting: await done(db.outbox.getAll()),
    shelf: await done(db.shelf.getAll()),
    token: await done(db.meta.get('token')),
  }))
  find('sign-in').hidden = Boolean(token)
  find('add').hidden = find('sync').hidden = find('sign-out').hidden = !token
  const changes = new Set(waiting.map((entry) => entry.id)).size
  const word = changes === 1 ? '1 change' : `${changes} changes`
  if (!token) find('status').textContent = 'Signed out'
  else if (changes) find('status').textContent = `${state ?? (navigator.onLine ? 'Syncing' : 'Offline')}: ${word} waiting`
  else if (state) find('status').textContent = state
  find('problem').textContent = problem
  const shown = notes.filter((note) => token && !note.deleted).sort((a, b) => b.created_at - a.created_at)
  if (!token) {
    find('notes').classList.remove('editing')
    endUndo()
  }
  // While a note is edited the list stays as it is, so that nothing typed is lost.
  if (!find('notes').classList.contains('editing')) redraw(shown)
  find('refused').hidden = !token || shelf.length === 0
  find('shelf').replaceChildren(...(token ? shelf : []).map(drawRefused))
}

// The keyboard stays on its button: a sync in the background draws the list, too.
function redraw(shown) {
  const focused = find('notes').contains(document.activeElement) ? document.activeElement : null
  const id = focused?.closest('li').id
  find('notes').replaceChildren(...shown.map(drawNote))
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

function drawNote(note) {
  const isSealed = note.text.startsWith('enc:v1:')
  const line = item(isSealed ? 'Encrypted: open it on a device that has the key.' : note.text)
  line.id = `note-${note.id}`
  if (!isSealed) line.append(button('Edit', () => openEditor(line, note)))
  line.append(button('Delete', () => remove(note.id)))
  return line
}

// The last deleted note can be restored for a moment, and while the button has the focus.
const UNDO_MS = 10_000
let removed = null
let undoTimer = null

async function remove(id) {
  await change({ id, deleted: true })
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
  // Another user may have signed in, or the server may have deleted the note permanently.
  const note = await transaction('readonly', (db) => done(db.notes.get(id)))
  if (!note?.deleted) return
  await change({ id, deleted: false })
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
  const close = (work) => {
    find('notes').classList.remove('editing')
    work()
  }
  const accept = document.createElement('button')
  accept.className = 'primary'
  accept.textContent = 'Save'
  form.append(text, accept, button('Cancel', () => close(show)))
  form.addEventListener('submit', (event) => {
    event.preventDefault()
    close(() => save({ id: note.id, text: text.value }))
  })
  line.replaceChildren(form)
  find('notes').classList.add('editing')
  text.focus()
}

// Changes that the server does not have yet wait for the same user to sign in again.
async function signOut(problem) {
  await transaction('readwrite', async (db) => {
    await done(db.meta.delete('token'))
    if (await done(db.outbox.count()) === 0) for (const store of Object.values(db)) await done(store.clear())
  })
  await show('Signed out', problem)
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
  find('add').reset()
  await save({ text })
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
find('sign-out').addEventListener('click', () => signOut(''))
window.addEventListener('online', () => {
  pause = 1000
  sync()
})
window.addEventListener('offline', () => show('Offline'))
setInterval(() => document.visibilityState === 'visible' && sync(), 30_000)
if ('serviceWorker' in navigator) navigator.serviceWorker.register('offline.js').catch(() => {})
show().then(sync)
